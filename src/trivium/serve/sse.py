"""Streams: how their pieces are framed, and the response that sends them as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from trivium.faults import fault_point
from trivium.serve.disconnect import cancel_and_wait, client_gone
from trivium.serve.errors import ApiError, ClientGoneError, as_api_error
from trivium.serve.limits import Limits
from trivium.serve.request_times import current_request

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class Framing(Struct, frozen=True):
    """What a stream has beside its pieces."""

    media_type: bytes
    end: bytes = b""
    keep_alive: bytes = b""  # into a silence; empty: there is nothing that a reader would pass over


OPENAI_EVENTS = Framing(EVENT_STREAM, DONE, COMMENT)


def event(payload: bytes) -> bytes:
    """One event. JSON on one line holds no line break, so it needs no escaping."""
    return b"data: " + payload + b"\n\n"


def named_event(name: str, payload: bytes) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(payload)


def error_event(failure: ApiError) -> bytes:
    return event(failure.encode())


class EventStreamResponse:
    """Streams framed events, then what ends such a stream.

    Nothing is sent before the first event, so that what fails until then is raised and becomes an HTTP status. What
    fails later is told in the stream and kept in `failure`.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        limits: Limits,
        tell_failure: Callable[[ApiError], bytes] = error_event,
        framing: Framing = OPENAI_EVENTS,
    ) -> None:
        self.failure: ApiError | None = None
        self._tell_failure = tell_failure
        self._events = events
        self._framing = framing
        self._limits = limits
        self._started = False
        self._sending = False  # a write that waits for a slow reader is no silence
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (times := current_request()) is not None:
            times.streams = True
        producing = asyncio.create_task(self._produce(send, scope["state"]["request_id"]))
        watching = asyncio.create_task(client_gone(receive))
        try:
            await self._wait(producing, watching, send)
            if not producing.done():
                raise ClientGoneError
            await producing
        finally:
            await cancel_and_wait(producing, watching)

    async def _produce(self, send: Send, request_id: str) -> None:
        try:
            async with aclosing(self._events) as events:
                async for framed in events:
                    if not self._started:
                        await self._start(send)
                    await self._send(send, framed)
        except Exception as error:
            if not self._started:
                raise
            self.failure = as_api_error(error, request_id)
            await self._send(send, self._tell_failure(self.failure))
        if not self._started:
            await self._start(send)
        if self._framing.end:
            await self._send(send, self._framing.end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait(self, producing: asyncio.Task[None], watching: asyncio.Task[None], send: Send) -> None:
        """Until one of the two is done, with something into the silence."""
        patience = self._limits.first_event_seconds
        while True:
            done, _ = await asyncio.wait((producing, watching), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            if not self._started:
                await self._start(send)
            silence = time.monotonic() - self._last_sent
            if silence >= self._limits.keep_alive_seconds:
                if self._framing.keep_alive and not self._sending:
                    await self._send(send, self._framing.keep_alive)
                silence = 0.0
            patience = self._limits.keep_alive_seconds - silence

    async def _start(self, send: Send) -> None:
        fault_point("sse.start")
        self._started = True
        headers = [
            (b"content-type", self._framing.media_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send(self, send: Send, body: bytes) -> None:
        fault_point("sse.send")
        self._sending = True
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._sending = False
        self._last_sent = time.monotonic()
