"""Traces that cannot be sent are dropped, counted and told of; the next ones go out as if nothing had been."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable

import pytest

from trivium.observe import spans
from trivium.observe.events import RequestEnded
from trivium.observe.request_account import RequestAccount
from trivium.observe.request_end import RequestEnd
from trivium.observe.spans import SpanExporter

ACCOUNT = RequestAccount("r", RequestEnd.COMPLETE, received=0.0, seconds=1.0, causes={"decode": 1.0})
ENDED = RequestEnded("r", ACCOUNT.end, "m", is_awaited=True, account=ACCOUNT)
GARBAGE, REFUSAL = b"not HTTP at all\r\n\r\n", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
THANKS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def collector(answers: list[bytes], heard: list[bytes]):  # type: ignore[no-untyped-def]
    """Gives each connection the next answer, the last one to all that follow."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers.pop(0) if len(answers) > 1 else answers[0])
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def run_with(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    monkeypatch.setattr(spans, "EVERY_SECONDS", 0.001)
    asyncio.run(work())  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [GARBAGE, REFUSAL], ids=["garbage", "refusal"])
def test_a_collector_that_answers_anything_else_costs_its_traces_and_no_others(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        heard: list[bytes] = []
        async with collector([answer, THANKS], heard) as url:
            exporter = SpanExporter(url)
            running = asyncio.create_task(exporter.run())
            exporter.on_event(ENDED)
            await until(lambda: exporter.num_dropped == 1)
            exporter.on_event(ENDED)
            await until(lambda: len(heard) == 2)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            assert exporter.num_dropped == 1

    with caplog.at_level(logging.WARNING):
        run_with(monkeypatch, work)
    assert "1 traces could not be sent to" in caplog.text


def test_a_collector_that_is_not_there_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def work() -> None:
        exporter = SpanExporter(f"http://127.0.0.1:{port}")
        running = asyncio.create_task(exporter.run())
        exporter.on_event(ENDED)
        await until(lambda: exporter.num_dropped == 1)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    with caplog.at_level(logging.WARNING):
        run_with(monkeypatch, work)
    assert "could not be sent" in caplog.text


def test_what_waits_too_long_is_dropped_oldest_first_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = SpanExporter("http://127.0.0.1:9")
    for _ in range(spans.MAX_WAITING + 3):
        exporter.on_event(ENDED)
    assert exporter.num_dropped == 3
