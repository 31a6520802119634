"""How much the holder of a key may ask for: requests and tokens a minute, and requests at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import Struct

from trivium.types.errors import RateLimitedError

MINUTE = 60.0  # seconds
SECONDS_WHEN_UNKNOWN = 1.0  # that a request takes, before the first has ended
WEIGHT_OF_LAST = 0.2  # in the means of how long requests take and of what those of batches use
KEPT_FROM_BATCHES = 0.5  # of what a minute allows: a batch leaves that much to its key's online requests
LOOK_SECONDS = 1.0  # at most, between looks of a batch whether there is room: the rates may have been changed


class Rates(Struct, frozen=True):
    """None: as many as the server can."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    concurrent_requests: int | None = None

    @property
    def are_limited(self) -> bool:
        return self != Rates()


class Bucket:
    """Fills evenly with so many a minute, and holds what comes in one. It can be overdrawn: then it must fill up first."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._as_of = now

    def level(self, now: float) -> float:
        self._level = min(self._level + (now - self._as_of) * self.per_minute / MINUTE, self.per_minute)
        self._as_of = now
        return self._level

    def take(self, count: int, now: float) -> None:
        self._level = self.level(now) - count

    def seconds_until(self, level: float, now: float) -> float:
        return max(level - self.level(now), 0.0) * MINUTE / self.per_minute

    @property
    def kept_from_batches(self) -> float:
        return self.per_minute * KEPT_FROM_BATCHES

    def resized(self, per_minute: int, now: float) -> Bucket:
        """With another rate, and as much taken from it as before."""
        bucket = Bucket(per_minute, now)
        bucket.take(round(self.per_minute - self.level(now)), now)
        return bucket


@dataclass
class BatchTurn:
    """Held while a request of a batch runs."""

    on_end: Callable[[int | None], None] = lambda num_tokens: None
    num_tokens: int | None = None  # that it used, told by whoever ran it; None: it came to no answer

    def end(self) -> None:
        self.on_end(self.num_tokens)


class Allowance:
    """Tokens are counted as they are used, so a request may go beyond what is left: whoever comes next waits for it."""

    def __init__(self, name: str, rates: Rates, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._at_once: int | None = None
        self._running = 0
        self._mean_seconds = SECONDS_WHEN_UNKNOWN  # that a request takes
        self._batch_running = 0  # counted apart: what nobody waits for takes no place from those who wait
        self._batch_ended = asyncio.Event()  # set when one of them has; whoever waits for that clears it
        self._mean_batch_tokens: float | None = None  # that a request of a batch uses; None: none has ended yet
        self.change(rates)

    def change(self, rates: Rates) -> None:
        """What was used up under the old rates stays so."""
        now = self._clock()
        self._requests = _changed(self._requests, rates.requests_per_minute, now)
        self._tokens = _changed(self._tokens, rates.tokens_per_minute, now)
        self._at_once = rates.concurrent_requests

    @contextmanager
    def request(self) -> Iterator[None]:
        """From a request's arrival to the last byte of its answer. Raises RateLimitedError where it has to wait."""
        now = self._clock()
        self._check(now)
        if self._requests is not None:
            self._requests.take(1, now)
        with self.place():
            yield

    @contextmanager
    def place(self) -> Iterator[None]:
        """Held by what runs, also where it was let in before."""
        began = self._clock()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._mean_seconds += WEIGHT_OF_LAST * (self._clock() - began - self._mean_seconds)

    def charge(self, num_tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.take(num_tokens, self._clock())

    async def batch_turn(self) -> BatchTurn:
        """For a request of a batch, when it may begin: it is counted as others are, but waits where they are refused."""
        while (seconds := self.seconds_until_batch()) > 0:
            self._batch_ended.clear()
            try:
                async with asyncio.timeout(min(seconds, LOOK_SECONDS)):
                    await self._batch_ended.wait()
            except TimeoutError:
                pass
        if self._requests is not None:
            self._requests.take(1, self._clock())
        self._batch_running += 1
        return BatchTurn(self._end_batch_turn)

    def _end_batch_turn(self, num_tokens: int | None) -> None:
        self._batch_running -= 1
        self._batch_ended.set()
        if num_tokens is not None:
            mean = num_tokens if self._mean_batch_tokens is None else self._mean_batch_tokens
            self._mean_batch_tokens = mean + WEIGHT_OF_LAST * (num_tokens - mean)

    def seconds_until_batch(self) -> float:
        """Until a request of a batch may begin; 0: now; infinity: when another has ended."""
        if self._at_once is not None and self._batch_running >= self._at_once:
            return float("inf")
        now, waits = self._clock(), [0.0]
        if self._requests is not None:
            waits.append(self._requests.seconds_until(max(self._requests.kept_from_batches, 1.0), now))
        if self._tokens is not None:
            if self._batch_running and self._mean_batch_tokens is None:
                return float("inf")  # what they use is not known: one tries
            expected = self._batch_running * (self._mean_batch_tokens or 0.0)
            if self._batch_running and self._tokens.kept_from_batches + expected > self._tokens.per_minute:
                return float("inf")  # there is never as much
            waits.append(self._tokens.seconds_until(max(self._tokens.kept_from_batches + expected, 1.0), now))
        return max(waits)

    def _check(self, now: float) -> None:
        waits: list[tuple[float, str]] = []
        if self._at_once is not None and self._running >= self._at_once:
            waits.append((self._mean_seconds / self._at_once, f"{self._at_once} requests at once"))
        for bucket, unit in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None and (seconds := bucket.seconds_until(1.0, now)) > 0:
                waits.append((seconds, f"{bucket.per_minute} {unit} a minute"))
        if waits:
            seconds, limit = max(waits)
            raise RateLimitedError(
                f"the key {self._name!r} may have {limit}; there is room in {seconds:.1f} s", retry_after=seconds
            )

    def headers(self) -> dict[str, str]:
        """What is left, in the words of OpenAI."""
        now, headers = self._clock(), {}
        for bucket, unit in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{unit}"] = str(bucket.per_minute)
                headers[f"x-ratelimit-remaining-{unit}"] = str(max(int(bucket.level(now)), 0))
                headers[f"x-ratelimit-reset-{unit}"] = duration(bucket.seconds_until(bucket.per_minute, now))
        return headers


def _changed(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return Bucket(per_minute, now) if bucket is None else bucket.resized(per_minute, now)


def duration(seconds: float) -> str:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:g}s"
