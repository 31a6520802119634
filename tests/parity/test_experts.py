"""Experts on packed weights: inputs rounded as their weights want, tokens grouped by expert."""

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels import experts, gated, linear
from trivium.kernels.cases import error, normal
from trivium.kernels.gated import Activation
from trivium.kernels.ops import Ops
from trivium.kernels.quantize import quantized_activations
from trivium.kernels.weights import LinearWeight, QuantizedTensor, Weight

FUSED = [name for name in INSTRUCTION_SETS if name != "baseline"]  # the baseline rounds products before it adds


def type_of(weight: Weight) -> str:
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    return weight.type if isinstance(weight, QuantizedTensor) else names[weight.dtype]


def as_multiplied(x: Tensor, weight: Weight) -> Tensor:
    if (unit := QUANT_TYPES[type_of(weight)].block_elements) > 1:
        return quantized_activations(x, unit)
    return x.bfloat16().float() if type_of(weight) == "BF16" else x


def with_rounded_inputs(
    x: Tensor, ids: Tensor, shares: Tensor, gate: Weight, up: Weight, down: Weight, activation: Activation
) -> Tensor:
    """What the kernels should give: the reference, each layer of which is given what it multiplies."""
    out = torch.zeros(x.shape)
    for expert in torch.unique(ids).tolist():
        tokens, choices = torch.where(ids == expert)
        gates = linear.reference(as_multiplied(x[tokens], gate), gate[expert], None)
        ups = linear.reference(as_multiplied(x[tokens], up), up[expert], None)
        middle = gated.reference(gates, ups, activation)
        result = linear.reference(as_multiplied(middle, down), down[expert], None)
        out.index_add_(0, tokens, result * shares[tokens, choices, None])
    return out


def prepared(ops: Ops, *weights: Weight) -> list[LinearWeight]:
    return [ops.prepare(weight) for weight in weights]


@every_path
def test_they_are_the_reference_on_rounded_inputs(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for case in experts.cases(random):
        x, ids, shares, gate, up, down, activation = case.arguments
        got = ops.experts(x, ids, shares, *prepared(ops, gate, up, down), activation)
        want = with_rounded_inputs(*case.arguments)
        # A middle value at the edge between two roundings may fall to either side.
        exact = type_of(down) in ("F32", "F16")
        assert error(got, want) <= (2e-5 if exact else 5e-3), case.name
    assert not ops.fallbacks


def drawn(random: Generator, type: torch.dtype, hidden: int, wide: int) -> list[Weight]:
    shapes = [(5, wide, hidden), (5, wide, hidden), (5, hidden, wide)]
    return [normal(random, *shape, dtype=type) for shape in shapes]


@every_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_is_the_same_alone_among_others_and_on_any_number_of_threads(
    dtype: torch.dtype, instruction_set: str, random: Generator
) -> None:
    ops, alone = ops_of(instruction_set), ops_of(instruction_set, num_threads=1)
    for hidden, wide in [(64, 96), (50, 33)]:
        x, shares = normal(random, 90, hidden), normal(random, 90, 3)
        ids = torch.rand((90, 5), generator=random).topk(3).indices
        weights = prepared(ops, *drawn(random, dtype, hidden, wide))
        whole = ops.experts(x, ids, shares, *weights, "silu")  # type: ignore[arg-type, call-arg]
        for token in (0, 41, 89):
            part = slice(token, token + 1)
            assert torch.equal(alone.experts(x[part], ids[part], shares[part], *weights, "silu"), whole[part])  # type: ignore[arg-type, call-arg]


def test_the_order_of_a_tokens_choices_does_not_matter(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    x, shares, ids = (
        normal(random, 4, 64),
        normal(random, 4, 3),
        torch.tensor([[0, 3, 1], [2, 4, 0], [1, 2, 3], [4, 3, 0]]),
    )
    weights = prepared(ops, *drawn(random, torch.bfloat16, 64, 96))
    one_way = ops.experts(x, ids, shares, *weights, "silu")  # type: ignore[arg-type, call-arg]
    assert torch.equal(ops.experts(x, ids.flip(1), shares.flip(1), *weights, "silu"), one_way)  # type: ignore[arg-type, call-arg]


@pytest.mark.skipif(len(FUSED) < 2, reason="one path")
def test_every_path_that_fuses_multiply_and_add_gives_the_same_bits(random: Generator) -> None:
    x, shares, ids = normal(random, 9, 64), normal(random, 9, 2), torch.rand((9, 5), generator=random).topk(2).indices
    stored = drawn(random, torch.bfloat16, 64, 96)
    results = [ops_of(name).experts(x, ids, shares, *prepared(ops_of(name), *stored), "silu") for name in FUSED]  # type: ignore[arg-type, call-arg]
    for result in results[1:]:
        assert torch.equal(result, results[0])


@every_path
def test_no_tokens_are_no_work(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    weights = prepared(ops, *drawn(random, torch.float32, 64, 96))
    nothing = ops.experts(torch.zeros(0, 64), torch.zeros(0, 2).long(), torch.zeros(0, 2), *weights, "silu")  # type: ignore[arg-type, call-arg]
    assert nothing.shape == (0, 64)


@every_path
def test_of_equally_likely_experts_the_first_are_taken(instruction_set: str) -> None:
    ids, shares = ops_of(instruction_set).route(torch.zeros(2, 6), 3, True)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert error(shares, torch.full((2, 3), 1 / 3)) < 1e-6


@every_path
def test_a_router_that_gives_no_numbers_is_told(instruction_set: str) -> None:
    logits = torch.zeros(2, 6)
    logits[0, 3] = float("nan")
    ids, shares = ops_of(instruction_set).route(logits, 2, False)
    assert shares[0].isnan().all() and shares[1].isfinite().all()
    assert ((ids >= 0) & (ids < 6)).all()
