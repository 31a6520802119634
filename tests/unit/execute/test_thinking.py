"""Reasoning held to a budget."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.execute.thinking import forced_token
from trivium.types.request import ThinkingBudget

BEGIN, END, GO = (90, 91), (80, 81), (70,)
OPENED = ThinkingBudget(max_tokens=3, begin=(), end=END, closing=END + GO)  # by the prompt
BEGUN = ThinkingBudget(max_tokens=3, begin=BEGIN, end=END, closing=END + GO)


def generate(budget: ThinkingBudget, own: list[int]) -> list[int]:
    """The model would say `own`, from wherever it is left to itself."""
    tokens: list[int] = []
    rest = iter(own)
    while True:
        forced = forced_token(budget, np.array(tokens, dtype=np.int64))
        token = forced if forced is not None else next(rest, None)
        if token is None:
            return tokens
        tokens.append(token)


def test_what_the_prompt_began_is_ended_after_the_budget() -> None:
    assert generate(OPENED, [1, 2, 3, 4, 5, 6]) == [1, 2, 3, 80, 81, 70, 4, 5, 6]


def test_what_the_model_began_is_counted_from_there() -> None:
    assert generate(BEGUN, [5, 90, 91, 1, 2, 3, 4, 6]) == [5, 90, 91, 1, 2, 3, 80, 81, 70, 4, 6]


@pytest.mark.parametrize("own", [[1, 80, 81, 70, 5, 6, 7], [1, 80, 81, 5, 6, 7, 8, 9], [80, 81, 4, 4, 4]])
def test_reasoning_that_ends_by_itself_is_left_alone(own: list[int]) -> None:
    assert generate(OPENED, own) == own


def test_an_answer_without_reasoning_is_left_alone() -> None:
    assert generate(BEGUN, [1, 2, 3, 4, 5, 6, 7]) == [1, 2, 3, 4, 5, 6, 7]


def test_a_budget_of_nothing_ends_it_at_once() -> None:
    nothing = ThinkingBudget(max_tokens=0, begin=(), end=END, closing=END)
    assert generate(nothing, [1, 2]) == [80, 81, 1, 2]


def test_the_answer_may_hold_the_closing_tokens_again() -> None:
    assert generate(OPENED, [1, 2, 3, 80, 81, 70, 80]) == [1, 2, 3, 80, 81, 70, 80, 81, 70, 80]
