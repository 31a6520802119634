"""How fast sequences end, so that a refused client can be told when a place will be free."""

from __future__ import annotations

from collections import deque

NUM_REMEMBERED = 32
SECONDS_WHEN_UNKNOWN = 1.0
MOST_SECONDS = 60.0  # that anybody is told to wait because of others who were told to wait: not all of them come back


class Pace:
    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=NUM_REMEMBERED)  # of the present time of work
        self._between_ends = SECONDS_WHEN_UNKNOWN  # mean over the last few
        self._promised = 0.0  # when the last place becomes free that somebody was told of

    def ended(self, now: float) -> None:
        self._ends.append(now)
        if len(self._ends) > 1:
            self._between_ends = (now - self._ends[0]) / (len(self._ends) - 1)

    def rested(self) -> None:
        """There was nothing to do: how long that lasted tells nothing of the pace."""
        self._ends.clear()

    @property
    def between_ends(self) -> float:
        """Seconds from one end to the next, while there is work."""
        return self._between_ends

    def promise(self, now: float) -> float:
        """Seconds until a place becomes free that nobody was told of before."""
        next_place = max(self._promised, now) + self._between_ends
        self._promised = min(next_place, now + max(self._between_ends, MOST_SECONDS))
        return self._promised - now
