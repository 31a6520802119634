"""What all routes share: the models, the limits, who listens, and whether the server still takes requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trivium.observe.energy import EnergyMeter
from trivium.observe.events import Event, Listener, RequestEnded, RequestReceived, tell
from trivium.observe.prices import Prices
from trivium.observe.prometheus import Metrics
from trivium.observe.recent_requests import RecentRequests
from trivium.observe.request_end import RequestEnd
from trivium.records.records import Records
from trivium.serve.access.caller import asking
from trivium.serve.errors import ApiError, ClientGoneError, RefusedError, not_now
from trivium.serve.limits import Limits
from trivium.serve.models.fleet import Fleet
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.wording import Wording
from trivium.serve.request_times import RequestTimes, being_served

if TYPE_CHECKING:
    from trivium.serve.responses.background import BackgroundResponse

OnDemand = Literal["none", "ollama", "all"]


@dataclass
class ServerState:
    models: Fleet
    limits: Limits
    metrics: Metrics
    all_records: Records
    on_demand: OnDemand = "ollama"  # which front ends serve models from the store too
    accept_any_model: bool = False  # tools that hard-code another model's name are served all the same
    wording: Wording = field(default_factory=Wording)
    prices: Prices | None = None
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    recent: RecentRequests = field(default_factory=RecentRequests)
    listeners: list[Listener] = field(default_factory=list)  # who else hears of events
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    in_flight: int = 0  # requests for text
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set while none is in flight

    background: dict[str, BackgroundResponse] = field(default_factory=dict)  # being made while nobody waits, by id
    batch_news: asyncio.Event = field(default_factory=asyncio.Event)  # set when a batch was made or cancelled

    def __post_init__(self) -> None:
        self.idle.set()

    def emit(self, event: Event) -> None:
        for listener in (self.metrics.on_event, self.recent.on_event, *self.listeners):
            tell(listener, event)

    @property
    def records(self) -> Records:
        """Those that the caller may see."""
        return self.all_records.seen_by(asking().viewer)

    def background_response(self, response_id: str) -> BackgroundResponse | None:
        """One that is being made, and that the caller may see."""
        found = self.background.get(response_id)
        return found if found is not None and asking().may_see(found.owner) else None

    @property
    def default(self) -> ServedModel:
        """Answers where no model is named."""
        return self.models.default

    def check_open(self) -> None:
        """Raise where new requests are not taken: before the models are loaded, and once the server winds down."""
        if self.draining:
            raise not_now("the server is shutting down and takes no new requests", "draining")
        self.models.check_started()

    @asynccontextmanager
    async def request(self, request_id: str, arrived: float | None = None) -> AsyncGenerator[RequestSpan]:
        """Counts a request for text from its first byte, which came at `arrived` or just now, to the last of its answer.

        It is in flight until the engine has told where its time went, which may be a step later; nobody waits for that.
        """
        times = RequestTimes(request_id, asking().name, self.meter, self.prices, arrived)
        span = RequestSpan(times)
        self.in_flight += 1
        self.idle.clear()
        self.emit(RequestReceived(request_id))
        try:
            with being_served(times):
                yield span
        except BaseException as error:
            span.failure = error
            raise
        finally:
            times.end()
            try:
                if not isinstance(span.failure, asyncio.CancelledError):
                    await times.settle()
            finally:
                self.in_flight -= 1
                if self.in_flight == 0:
                    self.idle.set()
                account = times.account(span.end)
                self.emit(RequestEnded(request_id, span.end, times.model, arrived is not None, account))


@dataclass
class RequestSpan:
    times: RequestTimes
    failure: BaseException | None = None

    @property
    def end(self) -> RequestEnd:
        match self.failure:
            case None:
                return RequestEnd.COMPLETE
            case ClientGoneError() | asyncio.CancelledError():
                return RequestEnd.CANCELLED
            case RefusedError():
                return RequestEnd.OVERLOADED
            case ApiError(status=status) if status < 500:
                return RequestEnd.INVALID
            case _:
                return RequestEnd.FAILED
