"""Graph mode: what is replayed is what runs eagerly, to the bit; what cannot be replayed says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import FAMILIES, TinyFamily

from trivium.execute.batch import build_batch
from trivium.execute.graph import GraphMode
from trivium.execute.rows import Rows
from trivium.formats.source import open_source
from trivium.kernels.native import native_state
from trivium.kernels.select import select_ops
from trivium.models.kv_cache import KVCache
from trivium.models.load import load_model
from trivium.store import DEFAULT_MODEL, ModelStore
from trivium.types.request import Sampling, Stopping
from trivium.types.step import RowStart, RowWork, TableUpdate

BLOCK_SIZE = 16
pytestmark = pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")


def first_step(num_groups: int, rows: Rows, lengths: list[int]) -> list[RowWork]:
    """Rows of the given lengths, each with blocks of its own, all of whose tokens are to be computed."""
    generator, work, block = torch.Generator().manual_seed(0), [], 0
    for row, length in enumerate(lengths):
        tokens = tuple(torch.randint(3, 500, (length,), generator=generator).tolist())
        rows.start(RowStart(row, f"r{row}", 0, tokens, length, Sampling(seed=0), Stopping(max_tokens=1)))
        count = -(-length // BLOCK_SIZE)
        tables = []
        for group in range(num_groups):
            tables.append(TableUpdate(group, 0, tuple(range(block, block + count))))
            block += count
        rows.update_tables(row, tables)
        work.append(RowWork(row, 0, length, True, tuple(tables)))
    return work


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_replayed_step_is_the_eager_step_to_the_bit(family: TinyFamily, tmp_path: Path) -> None:
    family.save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops("native"), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    kv = KVCache(spec, 100 * len(spec.groups), model.ops.kv_layout, "cpu")
    rows = Rows(8, 512, spec, torch.device("cpu"))
    graph = GraphMode(model, kv, rows)
    for lengths in ([1], [40, 1, 17], [300]):
        batch = build_batch(rows, first_step(len(spec.groups), rows, lengths), BLOCK_SIZE, torch.device("cpu"))
        eager = model.forward(batch.tokens, batch.positions, batch.lengths, batch.attention, kv)
        assert torch.equal(graph.forward(batch), eager)
    assert (graph.replayed, graph.eager.total()) == (3, 0)


def test_packed_layers_are_joined_and_add_to_residuals_without_changing_a_bit() -> None:
    """The default model: its quantized weights are packed, which the recorder fuses."""
    model = load_model(open_source(ModelStore().resolve(DEFAULT_MODEL)), select_ops("native"), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    kv = KVCache(spec, 100, model.ops.kv_layout, "cpu")
    rows = Rows(8, 512, spec, torch.device("cpu"))
    graph = GraphMode(model, kv, rows)
    for lengths in ([1], [40, 1, 17]):
        batch = build_batch(rows, first_step(1, rows, lengths), BLOCK_SIZE, torch.device("cpu"))
        eager = model.forward(batch.tokens, batch.positions, batch.lengths, batch.attention, kv)
        assert torch.equal(graph.forward(batch), eager)
    assert graph.replayed == 2


def test_reference_kernels_have_no_graph_and_say_so(tmp_path: Path) -> None:
    FAMILIES[0].save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops("reference"), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    rows = Rows(4, 128, spec, torch.device("cpu"))
    graph = GraphMode(model, KVCache(spec, 4, model.ops.kv_layout, "cpu"), rows)
    assert graph.state == "none: these kernels have no graph mode"


def test_other_activations_than_float32_run_eagerly_and_say_so(tmp_path: Path) -> None:
    FAMILIES[0].save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops("native"), torch.bfloat16, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "bfloat16")
    rows = Rows(4, 128, spec, torch.device("cpu"))
    graph = GraphMode(model, KVCache(spec, 4, model.ops.kv_layout, "cpu"), rows)
    assert graph.state == "none: activations are bfloat16, and native ops take float32"


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_states_of_wanted_tokens_are_those_that_all_tokens_would_have(
    family: TinyFamily, kernels: str, tmp_path: Path
) -> None:
    family.save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops(kernels), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    kv = KVCache(spec, 10 * len(spec.groups), model.ops.kv_layout, "cpu")
    rows = Rows(8, 128, spec, torch.device("cpu"))
    graph = GraphMode(model, kv, rows)
    batch = build_batch(rows, first_step(len(spec.groups), rows, [40, 1, 17]), BLOCK_SIZE, torch.device("cpu"))
    every = graph.forward(batch)
    for wanted in ([0, 39, 40, 57], [40], []):
        states = graph.forward(batch, torch.tensor(wanted, dtype=torch.int64))
        assert torch.allclose(states, every[wanted], rtol=0, atol=1e-5 * every.abs().max().item())


@pytest.mark.parametrize("num_threads", [1, 2, 3, 20])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_replay_of_many_tokens_gives_those_that_are_wanted_to_the_bit(
    family: TinyFamily, num_threads: int, tmp_path: Path
) -> None:
    """More tokens than are taken at once between two calls of attention, before and after the last; threads take parts of
    them by themselves where each has some."""
    family.save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops("native", num_threads=num_threads), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    kv = KVCache(spec, 40 * len(spec.groups), model.ops.kv_layout, "cpu")
    rows = Rows(8, 512, spec, torch.device("cpu"))
    graph = GraphMode(model, kv, rows)
    batch = build_batch(rows, first_step(len(spec.groups), rows, [300, 1, 131]), BLOCK_SIZE, torch.device("cpu"))
    every = model.forward(batch.tokens, batch.positions, batch.lengths, batch.attention, kv)
    for wanted in ([299, 300, 431], [*range(0, 432, 2)], [5], []):
        assert torch.equal(graph.forward(batch, torch.tensor(wanted, dtype=torch.int64)), every[wanted])


@pytest.mark.parametrize("place", [0, 399])
def test_a_token_that_the_model_does_not_have_is_refused_by_whichever_thread_meets_it(
    place: int, tmp_path: Path
) -> None:
    FAMILIES[0].save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops("native", num_threads=2), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    rows = Rows(4, 512, spec, torch.device("cpu"))
    graph = GraphMode(model, KVCache(spec, 40 * len(spec.groups), model.ops.kv_layout, "cpu"), rows)
    batch = build_batch(rows, first_step(len(spec.groups), rows, [400]), BLOCK_SIZE, torch.device("cpu"))
    before = graph.forward(batch)
    token = int(batch.tokens[place])
    batch.tokens[place] = 10**6
    with pytest.raises(IndexError, match="token id 1000000"):
        graph.forward(batch)
    batch.tokens[place] = token
    assert torch.equal(graph.forward(batch), before)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [([3, 3], "rising order"), ([5, 2], "rising order"), ([40], "outside 0 to 39"), ([-1], "outside 0 to 39")],
)
def test_wanted_tokens_that_are_not_there_or_not_in_order_are_refused(
    wanted: list[int], why: str, tmp_path: Path
) -> None:
    FAMILIES[0].save(tmp_path)
    model = load_model(open_source(tmp_path), select_ops("native"), torch.float32, "cpu")
    spec = model.spec.kv_spec(BLOCK_SIZE, "float32")
    rows = Rows(4, 128, spec, torch.device("cpu"))
    graph = GraphMode(model, KVCache(spec, 4, model.ops.kv_layout, "cpu"), rows)
    batch = build_batch(rows, first_step(len(spec.groups), rows, [40]), BLOCK_SIZE, torch.device("cpu"))
    with pytest.raises((ValueError, IndexError), match=why):
        graph.forward(batch, torch.tensor(wanted))
