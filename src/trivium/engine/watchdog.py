"""Tells an engine that works from one that only lives: a loop that has not turned for long is told of and looked into, and
one that has not for much longer is ended.

Each loop turn may take as long as a step, and steps of large models take long: the first long prompt may take minutes where
all steps before took a second. To tell too early costs a red light; to end too early costs the requests, again and again. So
what is long is told by the longest step that was seen, never less than the operator's number, and the end comes at a
multiple of that.
"""

from __future__ import annotations

from enum import Enum

LONGEST_STEPS = 10.0  # so many times the longest step so far is long
PATIENCES_TO_END = 5.0  # with the default of 60 s: 2,048 tokens of a prompt at 7 tokens a second


class Action(Enum):
    NONE = "none"
    DUMP_STACKS = "dump stacks"
    END = "end"


class Watchdog:
    """Of one life of the process. All times are seconds of CLOCK_MONOTONIC."""

    def __init__(self, stall_seconds: float, now: float) -> None:
        self._stall_seconds = stall_seconds
        self._last_turn = now
        self._longest_step = 0.0
        self._has_dumped = False

    def hear(self, last_turn: float, longest_step: float) -> None:
        """What the engine said of itself."""
        self._last_turn = max(self._last_turn, last_turn)
        self._longest_step = max(self._longest_step, longest_step)
        self._has_dumped = False

    @property
    def patience(self) -> float:
        return max(self._stall_seconds, LONGEST_STEPS * self._longest_step)

    def age(self, now: float) -> float:
        """Since the loop last turned."""
        return now - self._last_turn

    def is_stalled(self, now: float) -> bool:
        return self.age(now) > self.patience

    def look(self, now: float) -> Action:
        if not self.is_stalled(now):
            return Action.NONE
        if not self._has_dumped:
            self._has_dumped = True
            return Action.DUMP_STACKS
        return Action.END if self.age(now) > PATIENCES_TO_END * self.patience else Action.NONE
