"""A Trivium server of our own, for as long as an experiment lasts."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from trivium.bench.errors import BenchError
from trivium.bench.redact import without_keys

READY = re.compile(r"^ready +(https?://\S+)")
STOP_SECONDS = 30.0
LONGEST_LINE = 1 << 20  # bytes, of its log
SHOWN_LINES = 5  # of a server that did not start


class OwnServer(Struct):
    url: str
    command: list[str]
    log: list[str]


@asynccontextmanager
async def own_server(model: str | None, options: str | None) -> AsyncIterator[OwnServer]:
    """Ready when it is entered, stopped when it is left. None is the default model."""
    arguments = ["serve", *([model] if model else []), "--port", "0", *shlex.split(options or "")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trivium",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,  # Ctrl-C is for us; we stop it then
    )
    server = OwnServer("", ["trivium", *without_keys(arguments)], [])
    log = server.log
    ready: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read_log(process, log, ready))
    try:
        url = await ready
        if url is None:
            raise BenchError(f"the server did not start: {' | '.join(log[-SHOWN_LINES:]) or 'it said nothing'}")
        server.url = url
        yield server
    finally:
        await _stop(process)
        await reading


async def _read_log(process: asyncio.subprocess.Process, log: list[str], ready: asyncio.Future[str | None]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode("utf-8", "replace").rstrip()
        log.append(text)
        if not ready.done():
            print(f"  {text}", file=sys.stderr, flush=True)  # a model may have to be fetched first
        if (found := READY.match(text)) and not ready.done():
            ready.set_result(found[1])
    if not ready.done():
        ready.set_result(None)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
