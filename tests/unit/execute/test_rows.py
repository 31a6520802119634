"""Tokens that only the device knows, until the host has heard of them."""

import numpy as np
import pytest
import torch

from trivium.execute.batch import build_batch
from trivium.execute.rows import Rows
from trivium.execute.sampler import why_host_is_needed
from trivium.kernels.sample import NOT_FINITE
from trivium.types.kv import KVGroup, KVSpec
from trivium.types.request import Sampling, Stopping, ThinkingBudget
from trivium.types.step import RowStart, RowWork, TableUpdate

CPU = torch.device("cpu")


def rows_with(*tokens: tuple[int, ...]) -> Rows:
    rows = Rows(8, 64, KVSpec(16, (KVGroup((0,)),), num_kv_heads=1, head_dim=1, dtype="float32"), CPU)
    for row, held in enumerate(tokens):
        rows.start(RowStart(row, f"r{row}", 0, held, len(held), Sampling(seed=0), Stopping(max_tokens=9)))
        rows.update_tables(row, [TableUpdate(0, 0, (row,))])
    return rows


def step_tokens(rows: Rows, *work: tuple[int, int, int]) -> list[int]:
    """Tokens that a step computes, of (row, start, count)."""
    return build_batch(rows, [RowWork(*item, samples=True) for item in work], 16, CPU).tokens.tolist()


def test_a_step_computes_tokens_that_the_host_has_not_heard_of() -> None:
    rows = rows_with((11, 12), (21,), (31, 32, 33))
    rows.put_drawn(torch.tensor([39, 19]))
    rows.expect(np.array([2, 0]))
    assert step_tokens(rows, (0, 2, 1), (1, 0, 1), (2, 3, 1)) == [19, 21, 39]
    assert step_tokens(rows, (2, 1, 3)) == [32, 33, 39]


def test_what_was_expected_stands_in_its_row_once_the_host_hears_of_it() -> None:
    rows = rows_with((11, 12), (21,))
    rows.put_drawn(torch.tensor([13, 22]))
    first = rows.expect(np.array([0, 1]))
    rows.learn(np.array([0, 1]), first, np.array([13, 22]))
    rows.put_drawn(torch.tensor([23]))
    second = rows.expect(np.array([1]))
    assert step_tokens(rows, (0, 2, 1), (1, 1, 2)) == [13, 22, 23]
    rows.learn(np.array([1]), second, np.array([23]))
    assert [rows.tokens_of(row).tolist() for row in (0, 1)] == [[11, 12, 13], [21, 22, 23]]
    assert rows.num_unknown == 0


def test_a_row_that_failed_goes_on_with_a_token_of_the_vocabulary() -> None:
    rows = rows_with((11, 12), (21,))
    rows.put_drawn(torch.tensor([NOT_FINITE, 22]))
    rows.expect(np.array([0, 1]))
    assert step_tokens(rows, (0, 2, 1), (1, 1, 1)) == [0, 22]


BUDGET = ThinkingBudget(max_tokens=1, begin=(), end=(5,), closing=(5,))


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (Sampling(seed=1, temperature=0.7, top_p=0.9, logit_bias=((3, 1.0),), bad_words=((1,),)), None),
        (Sampling(seed=1, presence_penalty=0.1), "penalties"),
        (Sampling(seed=1, repetition_penalty=1.1), "penalties"),
        (Sampling(seed=1, bad_words=((1, 2),)), "bad words"),
        (Sampling(seed=1, thinking=BUDGET), "thinking budget"),
    ],
)
def test_whose_draws_depend_on_tokens_before_waits_for_the_host(sampling: Sampling, reason: str | None) -> None:
    assert why_host_is_needed(sampling) == reason
