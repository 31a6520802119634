"""What all routes share: the engine, the limits, who listens, and whether the server still takes requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from trivium.dialects.detect import detect
from trivium.dialects.dialect import Dialect
from trivium.engine.client import EngineState
from trivium.llm.async_llm import AsyncLLM
from trivium.observe.events import Listener, RequestEnd, RequestEnded, RequestReceived
from trivium.observe.prometheus import Metrics
from trivium.records.records import Records
from trivium.serve.access.caller import asking
from trivium.serve.errors import ApiError, ClientGoneError, RefusedError, not_now
from trivium.serve.limits import Limits
from trivium.text.fill_in_the_middle import FillInTheMiddle
from trivium.text.template import ChatTemplate
from trivium.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from trivium.serve.responses.background import BackgroundResponse


@dataclass
class ServerState:
    llm: AsyncLLM
    limits: Limits
    metrics: Metrics
    records: Records
    accept_any_model: bool = False  # tools that hard-code another model's name are served all the same
    call_dialect: str | None = None  # by name; None: told from the model's chat template
    reasoning_dialect: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    # Templates render one at a time; to wait for another's turn must not hold up the event loop.
    template_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    draining: bool = False
    in_flight: int = 0  # requests for text
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set while none is in flight

    background: dict[str, BackgroundResponse] = field(default_factory=dict)  # being made while nobody waits, by id
    batch_news: asyncio.Event = field(default_factory=asyncio.Event)  # set when a batch was made or cancelled

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def emit(self) -> Listener:
        return self.metrics.on_event

    def check_model(self, name: str | None) -> None:
        served = self.llm.card.name
        if name is None or name == served or self.accept_any_model:
            self.check_allowed(served)
            return
        raise ApiError(
            404,
            f"the model {name[:200]!r} is not served here; {served!r} is",
            param="model",
            code="model_not_found",
        )

    def check_allowed(self, name: str) -> None:
        """Raise where the caller's key is not for this model."""
        if not asking().may_use(name):
            raise ApiError(
                403, f"this key is not for the model {name[:200]!r}", param="model", code="model_not_allowed"
            )

    @property
    def tokenizer(self) -> Tokenizer:
        if self.llm.tokenizer is None:
            raise self._loading()
        return self.llm.tokenizer

    @property
    def template(self) -> ChatTemplate:
        if self.llm.template is None:
            raise self._loading()
        return self.llm.template

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes reasoning and tool calls."""
        tokenizer = self.tokenizer
        return detect(
            self.template.source,
            self.call_dialect,
            self.reasoning_dialect,
            is_token=lambda mark: tokenizer.token_id(mark) is not None,
        )

    @cached_property
    def fill_in_the_middle(self) -> FillInTheMiddle | None:
        """None: the model has no tokens for it."""
        return FillInTheMiddle.of(self.tokenizer)

    def check_loaded(self) -> None:
        """Raise where the model is not known yet."""
        if self.llm.state is EngineState.STARTING or self.llm.tokenizer is None:
            raise self._loading()

    def _loading(self) -> RefusedError:
        return not_now("the model is being loaded", "engine_not_ready")

    def check_open(self) -> None:
        """Raise where new requests are not taken: before the engine is ready, and once the server winds down."""
        if self.draining:
            raise not_now("the server is shutting down and takes no new requests", "draining")
        self.check_loaded()
        if self.llm.state is not EngineState.READY:
            raise not_now(f"the engine is {self.llm.state}", "engine_not_ready")

    @contextmanager
    def request(self, request_id: str) -> Iterator[RequestSpan]:
        """Counts a request for text from its first byte to the last byte of its answer."""
        span = RequestSpan()
        began = time.monotonic()
        self.in_flight += 1
        self.idle.clear()
        self.emit(RequestReceived(request_id))
        try:
            yield span
        except BaseException as error:
            span.failure = error
            raise
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self.idle.set()
            self.emit(RequestEnded(request_id, span.end, time.monotonic() - began))


@dataclass
class RequestSpan:
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
