"""How long answers took of late: percentiles over the last minute, for people to watch. Metrics have the whole story."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct

from trivium.faults import fault_point
from trivium.observe.events import Event, FirstToken, TokensHanded

WINDOW_SECONDS = 60.0
MAX_WAITS = 4096  # the newest of each kind; so many sort in well under a millisecond


class Percentiles(Struct, frozen=True):
    """Seconds."""

    count: int
    p50: float
    p95: float


class RecentWaits:
    """Listens to events. A piece of several tokens is one wait, shared among them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._first_token: deque[tuple[float, float]] = deque(maxlen=MAX_WAITS)  # when, how long
        self._inter_token: deque[tuple[float, float]] = deque(maxlen=MAX_WAITS)

    def on_event(self, event: Event) -> None:
        fault_point("observe.waits")
        match event:
            case TokensHanded(seconds=seconds, count=count):
                self._inter_token.append((self._now(), seconds / count))
            case FirstToken(seconds=seconds):
                self._first_token.append((self._now(), seconds))

    def first_token(self) -> Percentiles | None:
        return self._percentiles(self._first_token)

    def inter_token(self) -> Percentiles | None:
        return self._percentiles(self._inter_token)

    def _percentiles(self, waits: Iterable[tuple[float, float]]) -> Percentiles | None:
        """None: there was none of late."""
        since = self._now() - WINDOW_SECONDS
        recent = sorted(seconds for when, seconds in waits if when >= since)
        if not recent:
            return None
        last = len(recent) - 1
        return Percentiles(len(recent), recent[round(0.50 * last)], recent[round(0.95 * last)])
