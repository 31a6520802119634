"""Reasoning held to a budget: where it is spent, the tokens that end reasoning come whatever the model would say."""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from trivium.types.request import TextMark, ThinkingBudget


class _MarkWatch:
    """Sees a text come, token by token."""

    def __init__(self, mark: TextMark) -> None:
        self._length = mark.length
        self._ends = dict(mark.ends)
        self._moves = {(state, token): after for state, token, after in mark.moves}
        self._state = 0

    def came_with(self, token: int) -> bool:
        """Whether this token makes the text whole."""
        after = self._moves.get((self._state, token))
        self._state = self._ends.get(token, 0) if after is None else after
        return self._state == self._length


class _Phase(Enum):
    BEFORE = auto()
    REASONING = auto()
    AFTER = auto()


class ThinkingWatch:
    """Of one row. What it says is a function of what was generated, so that a sequence that was preempted resumes alike."""

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._phase = _Phase.REASONING if budget.begin is None else _Phase.BEFORE
        self._begin = None if budget.begin is None else _MarkWatch(budget.begin)
        self._end = _MarkWatch(budget.end)
        self._num_seen = 0
        self._has_ended = False  # the end mark has come; what leads on from it may be missing
        self._num_spent = 0  # tokens of reasoning
        self._num_closed = 0  # tokens of the closing that have come in a row, once the budget was spent

    def forced_token(self, generated: np.ndarray) -> int | None:
        """The next token where it is not the model's to choose. generated: int64 [N], all tokens of the answer so far.

        The caller may let another come (a grammar that stands in the middle of a character asks for the rest of it);
        then the closing begins later.
        """
        for token in generated[self._num_seen :].tolist():
            self._see(token)
        self._num_seen = len(generated)
        if self._phase is not _Phase.REASONING or self._num_spent < self._budget.max_tokens:
            return None
        return self._budget.closing[self._num_closed]

    def _see(self, token: int) -> None:
        if self._phase is _Phase.BEFORE:
            assert self._begin is not None
            if self._begin.came_with(token):
                self._phase = _Phase.REASONING
        elif self._phase is _Phase.REASONING:
            self._see_reasoning(token)

    def _see_reasoning(self, token: int) -> None:
        closing = self._budget.closing
        self._has_ended |= self._end.came_with(token)
        if self._num_spent >= self._budget.max_tokens and token == closing[self._num_closed]:
            self._num_closed += 1  # what leads from the end to the answer belongs to it
            if self._num_closed == len(closing):
                self._phase = _Phase.AFTER
            return
        self._num_spent += 1
        if self._has_ended:
            self._phase = _Phase.AFTER
        self._num_closed = 0
