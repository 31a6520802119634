"""What is noted of a request while it is served, for its account. Each request has its own, and finds it by context:
tasks that a request starts have it too."""

from __future__ import annotations

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
from trivium.observe.request_account import RequestAccount, SequenceGroup, account_for
from trivium.observe.request_end import RequestEnd

log = logging.getLogger("trivium.serve")

SLOW_SEND_SECONDS = 0.001  # writes that the system's buffers take at once are no wait for the client


class RequestTimes:
    def __init__(self, request_id: str, caller: str, meter: EnergyMeter, prices: Prices | None) -> None:
        """`caller`: the name of its key."""
        self._request_id = request_id
        self._caller = caller
        self._meter = meter
        self._prices = prices
        self._received_at = time.time()
        self._began = time.monotonic()
        self._joules_before = meter.read()
        self._groups: list[SequenceGroup] = []
        self._slow_sends: list[tuple[float, float]] = []  # began, ended

    @property
    def request_id(self) -> str:
        return self._request_id

    def add(self, group: SequenceGroup) -> None:
        self._groups.append(group)

    def timed(self, send: Send) -> Send:
        """The same, noting when the client has to be waited for."""

        async def timed_send(message: Message) -> None:
            began = time.monotonic()
            await send(message)
            ended = time.monotonic()
            if ended - began > SLOW_SEND_SECONDS:
                self._slow_sends.append((began, ended))

        return timed_send

    def account(self, end: RequestEnd) -> RequestAccount:
        """As of now. Where it cannot be summed up, the time as a whole is told: the request itself has nothing to do with it."""
        try:
            return self._summed_up(end)
        except Exception:
            log.exception("request %s: its account cannot be summed up", self._request_id)
            seconds = time.monotonic() - self._began
            return RequestAccount(self._request_id, end, self._received_at, seconds, {}, caller=self._caller)

    def _summed_up(self, end: RequestEnd) -> RequestAccount:
        fault_point("observe.account", self._request_id)
        now = time.monotonic()
        last_text = max((group.ended for group in self._groups), default=now)
        slow = sum(ended - max(began, last_text) for began, ended in self._slow_sends if ended > last_text)
        account = account_for(self._request_id, end, self._received_at, self._began, now, self._groups, slow)
        account = replace(account, caller=self._caller)
        return replace(account, cost=self._cost(account, now)) if account.engine_seconds else account

    def _cost(self, account: RequestAccount, now: float) -> Cost | None:
        """Its share of the engine's time, at the power that the machine had meanwhile."""
        joules, before = self._meter.read(), self._joules_before
        used = None
        if joules is not None and before is not None:
            used = (joules - before) / (now - self._began) * account.engine_seconds
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


def answer_metrics() -> RequestAccount | UnsetType:
    """Where the answer's time went up to now, as its client may know: of other requests there is nothing in it."""
    times = current_request()
    return UNSET if times is None else replace(times.account(RequestEnd.COMPLETE), preempted_by="")


@contextmanager
def being_served(times: RequestTimes) -> Iterator[None]:
    token = _current.set(times)
    try:
        yield
    finally:
        _current.reset(token)
