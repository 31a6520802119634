"""A hand-written server over real sockets, which answers rightly or in one of the ways that servers go wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
NUM_PIECES = 3
HANG_SECONDS = 60


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(body: object) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


def text_event(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def plain(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes with an RST, as a process that crashed does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class FakePeer:
    """`behaviours` say what happens to each request for text, in order; the last holds for all that follow."""

    def __init__(self, behaviours: Sequence[str], gap: float, wait_for: int) -> None:
        self.behaviours = behaviours
        self.asked = 0
        self.all_asked = asyncio.Event()
        self.wait_for = wait_for  # requests that must have come before one is answered
        self.gap = gap  # seconds before each piece of text
        self.connections = 0
        self.requests: list[bytes] = []  # heads and bodies
        self.url = ""
        self.close = lambda: None  # to listen no more

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
                )
                body = await reader.readexactly(int(length.partition(b":")[2]))
                self.requests.append(head + body)
                if head.startswith(b"GET"):
                    writer.write(self._about(head))
                else:
                    await self._answer(writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _about(self, head: bytes) -> bytes:
        if head.startswith(b"GET /v1/models"):
            return plain(200, b'{"object": "list", "data": [{"id": "fake", "object": "model"}]}')
        return plain(404, b"{}")

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        if self.asked >= self.wait_for:
            self.all_asked.set()
        behaviour = self.behaviours[min(self.asked, len(self.behaviours)) - 1]
        await self.all_asked.wait()
        match behaviour:
            case "gone":
                self.close()
                writer.transport.abort()
            case "status 429":
                writer.write(plain(429, b'{"error": {"message": "busy"}}', "retry-after: 1"))
            case "status 500":
                writer.write(plain(500, b"oh"))
            case "closed":
                writer.transport.abort()
            case "reset":
                reset(writer)
            case "reset in stream":
                writer.write(STREAM_HEAD + chunk(text_event("a")))
                await writer.drain()
                reset(writer)  # Linux hands over what came before it first
            case "not http":
                writer.write(b"220 mail ready\r\n\r\n")
                writer.close()
            case "hang":
                await asyncio.sleep(HANG_SECONDS)
            case "hang in stream":
                writer.write(STREAM_HEAD + chunk(text_event("a")))
                await writer.drain()
                await asyncio.sleep(HANG_SECONDS)
            case "cut":
                writer.write(STREAM_HEAD + chunk(text_event("a")))
                writer.close()
            case "no done":
                writer.write(STREAM_HEAD + chunk(text_event("a", "stop")) + b"0\r\n\r\n")
            case "error in stream":
                error = {"error": {"message": "engine died", "type": "server_error"}}
                writer.write(STREAM_HEAD + chunk(text_event("a")) + chunk(event(error)) + b"0\r\n\r\n")
            case "not json":
                writer.write(STREAM_HEAD + chunk(event(b"<html>")) + b"0\r\n\r\n")
            case "bytewise":
                data = b"".join([STREAM_HEAD, *map(chunk, self._events(usage=True)), b"0\r\n\r\n"])
                for at in range(len(data)):
                    writer.write(data[at : at + 1])
                    await writer.drain()
            case "until close":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(self._events(usage=True)))
                writer.close()
            case "right, then reset":
                writer.write(b"".join([STREAM_HEAD, *map(chunk, self._events(usage=True)), b"0\r\n\r\n"]))
                await writer.drain()
                reset(writer)
            case "right, then closed":
                writer.write(b"".join([STREAM_HEAD, *map(chunk, self._events(usage=True)), b"0\r\n\r\n"]))
                writer.close()
            case "silent":
                end = text_event("", "stop")
                writer.write(STREAM_HEAD + chunk(end) + chunk(event(b"[DONE]")) + b"0\r\n\r\n")
            case _:
                writer.write(STREAM_HEAD)
                for data in self._events(usage=behaviour != "no usage"):
                    await asyncio.sleep(self.gap)
                    writer.write(chunk(data))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")

    def _events(self, usage: bool) -> list[bytes]:
        role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        pieces = [text_event(f"w{index} ") for index in range(NUM_PIECES)]
        counts = {"prompt_tokens": 12, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}
        told = [event({"choices": [], "usage": counts})] if usage else []
        return [b": comment\r\n\r\n", role, *pieces, text_event("", "length"), *told, event(b"[DONE]")]


@asynccontextmanager
async def fake_peer(*behaviours: str, gap: float = 0.0, wait_for: int = 1) -> AsyncIterator[FakePeer]:
    peer = FakePeer(behaviours or ("right",), gap, wait_for)
    server = await asyncio.start_server(peer.handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    peer.url = f"http://{host}:{port}"
    peer.close = server.close
    try:
        yield peer
    finally:
        server.close()
