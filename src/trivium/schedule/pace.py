"""How fast sequences end, so that a refused client can be told when a place will be free."""

from __future__ import annotations

from collections import deque

LEAST_REMEMBERED = 32
SECONDS_WHEN_UNKNOWN = 1.0
MOST_SECONDS = 60.0  # that anybody is told to wait because of others who were told to wait: not all of them come back


class Pace:
    def __init__(self, num_remembered: int = 0) -> None:
        """`num_remembered`: ends that the mean is over; sequences that began together may end together, all of one wave."""
        # When the present time of full work began, and the last ends in it.
        self._marks: deque[float] = deque(maxlen=max(num_remembered, LEAST_REMEMBERED) + 1)
        self._between_ends: float | None = None  # mean over the last few; None: not known yet
        self._promised = 0.0  # when the last place becomes free that somebody was told of

    def ended(self, now: float, *, is_awaited: bool) -> None:
        """`is_awaited`: somebody waits for the place. Only then do ends come as fast as they can."""
        if not is_awaited:
            self.begins(now)
            return
        self._marks.append(now)
        if len(self._marks) > 1:
            self._between_ends = (now - self._marks[0]) / (len(self._marks) - 1)

    def begins(self, now: float) -> None:
        """Nobody had to wait until now: how long that lasted tells nothing of the pace."""
        self._marks.clear()
        self._marks.append(now)

    @property
    def is_known(self) -> bool:
        return self._between_ends is not None

    @property
    def between_ends(self) -> float:
        """Seconds from one end to the next, while somebody waits for it."""
        return SECONDS_WHEN_UNKNOWN if self._between_ends is None else self._between_ends

    def promise(self, now: float) -> float:
        """Seconds until a place becomes free that nobody was told of before."""
        if self._between_ends is None:
            return SECONDS_WHEN_UNKNOWN  # by then more is known: nobody is sent away for long on a guess
        next_place = max(self._promised, now) + self._between_ends
        self._promised = min(next_place, now + max(self._between_ends, MOST_SECONDS))
        return self._promised - now
