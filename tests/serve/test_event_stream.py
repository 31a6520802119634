"""The response that streams events, on its own: what a client sees when the engine is silent, fails or is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from trivium.serve.errors import ClientGoneError
from trivium.serve.limits import Limits
from trivium.serve.sse import DONE, EventStreamResponse, event
from trivium.types.errors import EngineDeadError, OverloadedError

IMPATIENT = Limits(keep_alive_seconds=0.05, first_event_seconds=0.1)
ONE = event(b'{"a":1}')


class Client:
    """The two ends of a connection that an ASGI server would hold."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def stream(self, events: AsyncGenerator[bytes], limits: Limits = Limits()) -> EventStreamResponse:  # noqa: B008
        response = EventStreamResponse(events, limits)
        await response({"state": {"request_id": "r"}}, self.receive, self.send)
        return response


def test_t2_events_are_followed_by_done() -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield ONE
        yield ONE

    async def check() -> None:
        client = Client()
        await client.stream(events())
        assert client.body == ONE + ONE + DONE
        assert client.sent[0]["status"] == 200
        assert client.sent[-1]["more_body"] is False

    asyncio.run(check())


def test_t3_silence_is_filled_with_comments_only() -> None:
    client = Client()

    async def events() -> AsyncGenerator[bytes]:
        yield ONE
        while client.body == ONE:
            await asyncio.sleep(0.01)
        yield ONE

    async def check() -> None:
        await client.stream(events(), IMPATIENT)
        first, *comments, last, done, end = client.body.split(b"\n\n")
        assert (first, last, done, end) == (b'data: {"a":1}', b'data: {"a":1}', b"data: [DONE]", b"")
        assert comments and all(comment.startswith(b":") for comment in comments)

    asyncio.run(check())


def test_t6_what_fails_before_the_first_event_is_raised_and_nothing_is_sent() -> None:
    async def events() -> AsyncGenerator[bytes]:
        raise OverloadedError("full", retry_after=3)
        yield ONE

    async def check() -> None:
        client = Client()
        with pytest.raises(OverloadedError):
            await client.stream(events())
        assert client.sent == []

    asyncio.run(check())


def test_t6_a_first_event_that_takes_long_gets_its_headers_and_comments() -> None:
    client = Client()

    async def events() -> AsyncGenerator[bytes]:
        while not client.body:
            await asyncio.sleep(0.01)
        yield ONE

    async def check() -> None:
        await client.stream(events(), IMPATIENT)
        assert client.body.startswith(b":")
        assert client.body.endswith(ONE + DONE)
        assert [message["type"] for message in client.sent].count("http.response.start") == 1

    asyncio.run(check())


def test_t7_what_fails_later_is_told_in_the_stream() -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield ONE
        raise EngineDeadError("the engine died")

    async def check() -> None:
        client = Client()
        response = await client.stream(events())
        error = (
            b'data: {"error":{"message":"the engine died","type":"server_error","param":null,"code":"engine_dead"}}\n\n'
        )
        assert client.body == ONE + error + DONE
        assert response.failure is not None and response.failure.status == 503

    asyncio.run(check())


def test_t8_a_client_that_goes_ends_the_work_before_its_next_event() -> None:
    closed = []

    async def events() -> AsyncGenerator[bytes]:
        try:
            yield ONE
            await asyncio.sleep(3600)
        finally:
            closed.append(True)

    async def check() -> None:
        client = Client()
        streaming = asyncio.create_task(client.stream(events()))
        while not client.sent:
            await asyncio.sleep(0.01)
        client.gone.set()
        with pytest.raises(ClientGoneError):
            await streaming
        assert closed == [True]

    asyncio.run(check())
