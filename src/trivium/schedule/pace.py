"""How fast sequences end, so that a refused client can be told when a place will be free."""

from __future__ import annotations

from collections import deque

NUM_REMEMBERED = 32
SECONDS_WHEN_UNKNOWN = 1.0


class Pace:
    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def ended(self, now: float) -> None:
        self._ends.append(now)

    @property
    def seconds_between_ends(self) -> float:
        """Mean over the last few."""
        if len(self._ends) < 2:
            return SECONDS_WHEN_UNKNOWN
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
