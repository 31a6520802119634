"""Logits are worked on some rows at a time: that changes no token, and memory that is given again is nobody else's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from counted_memory import most_allocated
from native_paths import every_path, ops_of
from torch import Generator, Tensor

from trivium.kernels import logit_memory, logprobs, sample
from trivium.kernels.cases import normal
from trivium.kernels.logit_memory import REFERENCE_WORK_BYTES, reference_logit_bytes, row_slices
from trivium.kernels.result_memory import SMALLEST_BYTES, ResultMemory
from trivium.kernels.sample import Draws, SampleBatch

ROWS, TOKENS = 9, 700


def drawn(random: Generator, typical: list[float]) -> tuple[Tensor, SampleBatch]:
    """Rows that change their logits in every way, and draw with every filter."""
    columns = torch.tensor([[0.8, 200, 0.95, 0.01, one, 0.0] for one in typical], dtype=torch.float64)
    columns[:, 5] = torch.rand(len(typical), generator=random, dtype=torch.float64)
    is_typical = any(one < 1 for one in typical)
    changes = sample._changes(random, len(typical), TOKENS)
    return normal(random, len(typical), TOKENS) * 3, replace(changes, draws=Draws(columns, True, is_typical))


def test_rows_taken_some_at_a_time_draw_what_they_draw_all_at_once(
    random: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, batch = drawn(random, [1.0] * ROWS)
    chosen = torch.randint(TOKENS, (ROWS,), generator=random)
    results = []
    for at_once in (ROWS * TOKENS, 4 * TOKENS, 1):
        monkeypatch.setattr(logit_memory, "LOGITS_AT_ONCE", at_once)
        results.append((sample.reference(logits, batch), *logprobs.reference(logits, chosen, 5)))
    for tokens, scores, places in results[1:]:
        assert torch.equal(tokens, results[0][0]) and torch.equal(places, results[0][2])
        torch.testing.assert_close(scores, results[0][1], rtol=0, atol=1e-12)


def test_a_row_of_a_batch_draws_alone_what_it_draws_among_the_others(random: Generator) -> None:
    logits, batch = drawn(random, [1.0, 0.3] * 4)
    together = sample.reference(logits, batch).tolist()
    assert together == [int(sample.reference(logits[m : m + 1], batch.of_row(m))) for m in range(len(together))]


@every_path
def test_rows_with_typical_p_go_to_the_reference_and_the_others_do_not(instruction_set: str, random: Generator) -> None:
    logits, batch = drawn(random, [1.0, 0.3, 1.0, 0.5, 1.0])
    before = [tensor.clone() for tensor in (logits, batch.penalties.rows, batch.masks.bits)]  # type: ignore[union-attr]
    assert torch.equal(ops_of(instruction_set).sample(logits, batch), sample.reference(logits, batch))
    after = [logits, batch.penalties.rows, batch.masks.bits]  # type: ignore[union-attr]
    assert all(torch.equal(was, now) for was, now in zip(before, after, strict=True))
    ops_of(instruction_set).fallbacks.clear()


@pytest.mark.parametrize("fewest", [1, 16])
@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 100])
def test_slices_are_all_rows_once(num_rows: int, fewest: int) -> None:
    slices = list(row_slices(num_rows, 40_000, "cpu", fewest))
    assert slices and [row for some in slices for row in range(num_rows)[some]] == list(range(num_rows))
    assert all(some.stop - some.start >= max(3, fewest) for some in slices)


def filtered_draws(rows: int, typical_p: float) -> SampleBatch:
    columns = torch.tensor([[1.0, 5000, 0.9, 0.01, typical_p, 0.3]] * rows, dtype=torch.float64)
    return SampleBatch(Draws(columns, filters=True, typical=typical_p < 1))


@pytest.mark.parametrize("rows, tokens", [(12, 1 << 18), (64, 32000), (3, 128256)])
def test_the_references_work_is_what_is_planned_and_does_not_grow_with_the_rows(
    rows: int, tokens: int, random: Generator
) -> None:
    logits = torch.zeros(rows, tokens).normal_(generator=random)
    chosen = torch.randint(tokens, (rows,), generator=random)
    changes = sample._changes(random, rows, tokens)
    worked_on = max(tokens, logit_memory.LOGITS_AT_ONCE)
    planned = worked_on * REFERENCE_WORK_BYTES
    taken = [
        most_allocated(lambda: sample.reference(logits, filtered_draws(rows, 0.5))),
        most_allocated(lambda: sample.reference(logits, filtered_draws(rows, 1.0))),
        most_allocated(lambda: sample.reference(logits, changes)) - logits.nbytes,
        most_allocated(lambda: logprobs.reference(logits, chosen, 20)),
    ]
    assert planned * 0.6 < max(taken) < planned * 1.02
    assert reference_logit_bytes(rows, tokens, "cpu") >= 2 * logits.nbytes + planned


def test_a_result_takes_the_memory_of_the_last_one_that_is_gone() -> None:
    memory, count = ResultMemory(), SMALLEST_BYTES // 4
    first = memory.empty((1, count))
    place = first.data_ptr()
    del first
    second = memory.empty((2, count // 2))
    assert second.data_ptr() == place and second.shape == (2, count // 2)
    del second
    larger = memory.empty((5, count)).fill_(1.0)
    place = larger.data_ptr()
    del larger
    assert memory.empty((4, count)).data_ptr() == place


def test_a_result_that_lives_is_not_written_over() -> None:
    memory, count = ResultMemory(), SMALLEST_BYTES // 4
    with torch.inference_mode():
        first = memory.empty((2, count)).fill_(1.0)
        second = memory.empty((2, count)).fill_(2.0)
        view = first[1:, 5:9]  # a part of it keeps all of it
        del first
        third = memory.empty((2, count)).fill_(3.0)
    assert view.tolist() == [[1.0] * 4]
    assert second.unique().tolist() == [2.0] and third.unique().tolist() == [3.0]


@every_path
def test_logits_whose_rows_lie_apart_give_what_dense_ones_do(random: Generator, instruction_set: str) -> None:
    ops = ops_of(instruction_set)
    dense, batch = drawn(random, [1.0] * ROWS)
    apart = normal(random, ROWS, TOKENS + 16)[:, :TOKENS].copy_(dense)
    assert torch.equal(ops.sample(apart, batch), ops.sample(dense, batch))
    chosen = torch.randint(TOKENS, (ROWS,), generator=random)
    for of_apart, of_dense in zip(ops.logprobs(apart, chosen, 5), ops.logprobs(dense, chosen, 5), strict=True):
        assert torch.equal(of_apart, of_dense)


@every_path
def test_rows_that_would_lie_whole_pages_apart_are_moved_by_a_line(random: Generator, instruction_set: str) -> None:
    ops, columns = ops_of(instruction_set), 1024
    rows = SMALLEST_BYTES // 4 // columns
    x, weight = normal(random, rows, 64), normal(random, columns, 64)
    together = ops.linear(x, ops.prepare(weight), None)
    less = ops.linear(x, ops.prepare(weight[: columns - 1].contiguous()), None)
    assert together.stride() == (columns + 16, 1) and less.stride() == (columns - 1, 1)
    assert torch.equal(together[:, : columns - 1], less)


def test_small_results_are_the_allocators() -> None:
    memory = ResultMemory()
    one, two = memory.empty((3, 5)), memory.empty((3, 5))
    assert one.data_ptr() != two.data_ptr() and one.dtype == torch.float32
