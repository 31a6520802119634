"""Recorded ops that are joined into one: fewer of them, and the bits of each by itself."""

from typing import Any

import pytest
import torch
from native_paths import every_path, ops_of
from torch import Generator

from trivium.kernels.cases import normal, quantized
from trivium.kernels.gated import Activation
from trivium.kernels.ops import Ops
from trivium.kernels.weights import LinearWeight

COLUMNS = 256


def prepared(ops: Ops, random: Generator, form: str, rows: int) -> LinearWeight:
    if form == "units of bytes":
        assert ops.packing is not None
        return ops.packing.pack_as(quantized(random, "Q4_K", rows, COLUMNS, scale=0.01), "Q4_K_UNITS")
    if form == "rows of bytes":
        assert ops.packing is not None
        return ops.packing.pack_as(quantized(random, "Q8_0", rows, COLUMNS, scale=0.01), ops.packing.rows_type)
    if form in ("float32", "bfloat16"):
        return ops.prepare(normal(random, rows, COLUMNS).to(getattr(torch, form)))
    return ops.prepare(quantized(random, form, rows, COLUMNS, scale=0.01))


@every_path
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("form", ["Q4_1", "Q4_K", "rows of bytes", "units of bytes", "bfloat16", "float32"])
def test_a_gated_layer_is_the_gate_the_layer_and_their_product_to_the_bit(
    form: str, activation: Activation, instruction_set: str, random: Generator
) -> None:
    ops = ops_of(instruction_set)
    assert ops.record is not None
    table, num_rows = normal(random, 200, COLUMNS), 77  # no multiple of a vector, nor of a tile
    gate, up = prepared(ops, random, form, num_rows), prepared(ops, random, form, num_rows)
    biases = normal(random, 2, num_rows)

    def layers(o: Ops, tokens: Any, *_: object) -> Any:
        x = o.embed(tokens, table, torch.float32)
        return o.gated(o.linear(x, gate, biases[0]), o.linear(x, up, biases[1]), activation)

    recorded = ops.record(layers, 0, 0)
    assert recorded.num_ops == (3 if form in ("float32", "bfloat16") else 2), "the embedding, layers, a gate of its own"
    for num_tokens in (1, 3, 8, 19, 40, 150):
        tokens = torch.randint(0, 200, (num_tokens,), generator=random)
        assert torch.equal(recorded.run(tokens, [], []), layers(ops, tokens)), num_tokens


def test_gates_that_are_asked_for_elsewhere_are_kept(random: Generator) -> None:
    ops = ops_of("baseline")
    assert ops.record is not None
    table = normal(random, 20, COLUMNS)
    gate, up = prepared(ops, random, "Q4_1", 48), prepared(ops, random, "Q4_1", 48)

    def layers(o: Ops, tokens: Any, *_: object) -> Any:
        x = o.embed(tokens, table, torch.float32)
        gates = o.linear(x, gate, None)
        return o.gated(gates, o.linear(x, up, None), "silu") + gates

    tokens = torch.arange(20)
    assert torch.equal(ops.record(layers, 0, 0).run(tokens, [], []), layers(ops, tokens))


@every_path
@pytest.mark.parametrize("form", ["Q4_1", "rows of bytes", "units of bytes", "bfloat16", "float32"])
def test_a_layer_that_norms_its_rows_is_the_norm_and_the_layer_to_the_bit(
    form: str, instruction_set: str, random: Generator
) -> None:
    ops = ops_of(instruction_set)
    assert ops.record is not None
    table, norm = normal(random, 200, COLUMNS), normal(random, 1, COLUMNS)[0]
    weight = prepared(ops, random, form, 77)

    def layers(o: Ops, tokens: Any, *_: object) -> Any:
        return o.linear(o.rms_norm(o.embed(tokens, table, torch.float32), norm, 1e-6), weight, None)

    recorded = ops.record(layers, 0, 0)
    assert recorded.num_ops == 2, "the embedding, and the layer"
    for num_tokens in (1, 3, 19, 150):
        tokens = torch.randint(0, 200, (num_tokens,), generator=random)
        assert torch.equal(recorded.run(tokens, [], []), layers(ops, tokens)), num_tokens


def test_norms_that_are_asked_for_elsewhere_or_are_of_heads_are_ops_of_their_own(random: Generator) -> None:
    ops = ops_of("baseline")
    assert ops.record is not None
    table, norms = normal(random, 20, COLUMNS), normal(random, 2, COLUMNS)
    weight = prepared(ops, random, "Q4_1", COLUMNS)

    def twice(o: Ops, tokens: Any, *_: object) -> Any:
        normed = o.rms_norm(o.embed(tokens, table, torch.float32), norms[0], 1e-6)
        return o.linear(normed, weight, None) + normed

    def of_heads(o: Ops, tokens: Any, *_: object) -> Any:
        x = o.embed(tokens, table, torch.float32)
        heads = o.rms_norm(x.view(len(x), 4, COLUMNS // 4), norms[1, : COLUMNS // 4].contiguous(), 1e-6)
        return o.linear(heads.flatten(1), weight, None)

    tokens = torch.arange(20)
    for layers in (twice, of_heads):
        assert torch.equal(ops.record(layers, 0, 0).run(tokens, [], []), layers(ops, tokens)), layers.__name__
