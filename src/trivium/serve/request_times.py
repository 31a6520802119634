"""What is noted of a request while it is served, for its account. Each request has its own, and finds it by context:
tasks that a request starts have it too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.types import Message, Send

from trivium.faults import fault_point
from trivium.observe.energy import EnergyMeter
from trivium.observe.prices import Cost, Prices
from trivium.observe.request_account import RequestAccount, account_for
from trivium.observe.request_end import RequestEnd
from trivium.serve.engine_notes import EngineNotes

log = logging.getLogger("trivium.serve")

ARRIVED = "arrived"  # in a scope's state: when the first byte of the request was read; seconds of CLOCK_MONOTONIC
SLOW_SEND_SECONDS = 0.001  # writes that the system's buffers take at once are no wait for the client
LAST_WORDS_SECONDS = 10.0  # in which an engine that lives ends the step under way


class RequestTimes:
    def __init__(
        self, request_id: str, caller: str, meter: EnergyMeter, prices: Prices | None, arrived: float | None = None
    ) -> None:
        """`caller`: the name of its key. `arrived`: see ARRIVED; None: just now."""
        self._request_id = request_id
        self._caller = caller
        self._meter = meter
        self._prices = prices
        now = time.monotonic()
        self.began = now if arrived is None else arrived
        self._received_at = time.time() - (now - self.began)
        self._ended: float | None = None
        self._joules_before = meter.read()
        self._notes: list[EngineNotes] = []
        self._slow_sends: list[tuple[float, float]] = []  # began, ended
        self.model = ""  # the name of the one that answers
        self.streams = False  # its pieces are written as they come
        self.last_write = 0.0  # when the last piece was written
        self._first_token: float | None = None  # when
        self._later_tokens, self._later_seconds = 0, 0.0  # all but the first of each sequence, and the waits for them

    @property
    def request_id(self) -> str:
        return self._request_id

    def add(self, model: str, notes: EngineNotes) -> None:
        """`model`: the name of the one that they were handed to."""
        self.model = model
        self._notes.append(notes)

    def first_token(self, now: float) -> None:
        """Of a prompt; that of the request is the first of these."""
        self._first_token = now if self._first_token is None else min(self._first_token, now)

    def more_tokens(self, count: int, seconds: float) -> None:
        self._later_tokens += count
        self._later_seconds += seconds

    def timed(self, send: Send) -> Send:
        """The same, noting when pieces were written and when the client had to be waited for."""

        async def timed_send(message: Message) -> None:
            began = time.monotonic()
            await send(message)
            self.last_write = ended = time.monotonic()
            if ended - began > SLOW_SEND_SECONDS:
                self._slow_sends.append((began, ended))

        return timed_send

    def end(self) -> None:
        """The last byte was handed to the socket."""
        self._ended = time.monotonic()

    async def settle(self) -> None:
        """Until the engine has told where the time went: at once, or, where it was not it that ended the sequences, after
        the step under way."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                for notes in self._notes:
                    await notes.settle()
        except TimeoutError:
            log.warning("request %s: the engine has not told where its time went", self._request_id)

    def account(self, end: RequestEnd) -> RequestAccount:
        """As of now. Where it cannot be summed up, the time as a whole is told: the request itself has nothing to do with it."""
        try:
            return self._summed_up(end)
        except Exception:
            log.exception("request %s: its account cannot be summed up", self._request_id)
            seconds = self._now - self.began
            return RequestAccount(self._request_id, end, self._received_at, seconds, {}, caller=self._caller)

    def _summed_up(self, end: RequestEnd) -> RequestAccount:
        fault_point("observe.account", self._request_id)
        now, groups = self._now, [notes.group() for notes in self._notes if notes.were_sent]
        last_text = max((group.ended for group in groups), default=now)
        slow = sum(ended - max(began, last_text) for began, ended in self._slow_sends if ended > last_text)
        account = account_for(self._request_id, end, self._received_at, self.began, now, groups, slow)
        return replace(
            account,
            caller=self._caller,
            cost=self._cost(account, now) if account.engine_seconds else None,
            time_to_first_token=None if self._first_token is None else self._first_token - self.began,
            inter_token_latency=self._later_seconds / self._later_tokens if self._later_tokens else None,
        )

    @property
    def _now(self) -> float:
        """Up to which it is accounted for."""
        return time.monotonic() if self._ended is None else self._ended

    def _cost(self, account: RequestAccount, now: float) -> Cost | None:
        """Its share of the engine's time, at the power that the machine had meanwhile."""
        joules, before = self._meter.read(), self._joules_before
        used = None
        if joules is not None and before is not None:
            used = (joules - before) / (now - self.began) * account.engine_seconds
        if self._prices is not None:
            return self._prices.cost(account.engine_seconds, used)
        return None if used is None else Cost(joules=used)


_current: ContextVar[RequestTimes | None] = ContextVar("request_times", default=None)


def current_request() -> RequestTimes | None:
    """None: what is made belongs to no request under way, as in the background."""
    return _current.get()


def current_request_id() -> str | None:
    times = current_request()
    return None if times is None else times.request_id


async def answer_metrics() -> RequestAccount | UnsetType:
    """Where the answer's time went up to now, as its client may know: of other requests there is nothing in it. Who asks
    for it waits until the engine has told it."""
    times = current_request()
    if times is None:
        return UNSET
    await times.settle()
    return replace(times.account(RequestEnd.COMPLETE), preempted_by="")


@contextmanager
def being_served(times: RequestTimes) -> Iterator[None]:
    token = _current.set(times)
    try:
        yield
    finally:
        _current.reset(token)
