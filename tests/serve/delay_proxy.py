"""A server that is slower than another by a known time: it passes everything on, each request for text late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from server_process import PATIENCE


@contextmanager
def delay_proxy(port: int, seconds: float) -> Iterator[str]:
    """In a thread of its own; the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(lambda reader, writer: _relay(reader, writer, port, seconds), "127.0.0.1", 0)

    async def stop() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, seconds: float) -> None:
    upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await asyncio.gather(_pump(reader, upstream_writer, seconds), _pump(upstream_reader, writer, 0))
    finally:
        writer.close()
        upstream_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    while data := await reader.read(65536):
        await asyncio.sleep(seconds if data.startswith(b"POST") else 0)
        writer.write(data)
        await writer.drain()
    writer.close()
