"""Reasoning held to a budget: where it is spent, the tokens that end reasoning come whatever the model would say."""

from __future__ import annotations

import numpy as np

from trivium.types.request import ThinkingBudget

NOT_FOUND = -1


def forced_token(budget: ThinkingBudget, generated: np.ndarray) -> int | None:
    """The next token where it is not the model's to choose. A function of what was generated, so that a sequence that was
    preempted resumes alike. generated: int64 [N]"""
    start = 0
    if budget.begin:
        found = _find(generated, budget.begin)
        if found == NOT_FOUND:
            return None
        start = found + len(budget.begin)
    spent = start + budget.max_tokens
    num_forced = len(generated) - spent
    if num_forced < 0 or num_forced >= len(budget.closing):
        return None
    if tuple(generated[spent:]) != budget.closing[:num_forced]:
        return None  # it ended by itself, and this is the answer
    if _find(generated[start:spent], budget.end) != NOT_FOUND:
        return None
    return budget.closing[num_forced]


def _find(tokens: np.ndarray, wanted: tuple[int, ...]) -> int:
    """Where the wanted tokens first stand in a row."""
    count = len(tokens) - len(wanted) + 1
    if count <= 0:
        return NOT_FOUND
    matches = np.ones(count, dtype=bool)
    for place, token in enumerate(wanted):
        matches &= tokens[place : place + count] == token
    first = int(matches.argmax())
    return first if matches[first] else NOT_FOUND
