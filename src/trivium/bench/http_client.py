"""HTTP/1.1 on asyncio streams, as much as measuring needs: each piece of a body with the moment at which it was read."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from trivium.bench.errors import BenchError
from trivium.bench.samples import Outcome

READ_BYTES = 1 << 16
HEAD_BYTES = 1 << 16


class TransportError(Exception):
    """The exchange failed; `outcome` says in which way."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class Origin(Struct, frozen=True):
    """Where a server is, and under which path its OpenAI API lies."""

    scheme: str
    host: str
    port: int
    api_path: str

    @classmethod
    def parse(cls, url: str) -> Origin:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BenchError(f"{url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BenchError(f"{url}: not the address of a server, such as http://127.0.0.1:8000/v1")
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/") or "/v1")

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.api_path}"


class Answer:
    """Status and headers have come; the body is read with `pieces`, or whole with `read`."""

    def __init__(self, connection: _Connection, status: int, headers: dict[str, str], framing: _Framing) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection
        self._framing = framing

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """(monotonic nanoseconds, bytes) for each read; an end before the end of the body raises CUT."""
        at, data = self._connection.take_leftover()
        while True:
            if body := self._framing.feed(data):
                yield at, body
            if self._framing.done:
                return
            try:
                at, data = await self._connection.read()
            except OSError as error:
                raise TransportError(Outcome.CUT, str(error)) from None
            if not data:
                self._framing.end()
                return

    async def read(self) -> bytes:
        return b"".join([data async for _, data in self.pieces()])

    @property
    def reusable(self) -> bool:
        return self._framing.done and self._framing.delimited and self.headers.get("connection", "").lower() != "close"


class HttpClient:
    """Connections are kept and used again, as a client library does."""

    def __init__(self, origin: Origin, api_key: str | None = None) -> None:
        self.origin = origin
        self._tls = ssl.create_default_context() if origin.scheme == "https" else None
        self._idle: list[_Connection] = []
        lines = [f"Host: {origin.authority}", "User-Agent: trivium-bench", "Accept: */*"]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        self._header_lines = "\r\n".join(lines)

    @asynccontextmanager
    async def exchange(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[Answer]:
        """The answer's head; the connection is kept only if the body was read to its end."""
        request = self._request(method, path, body)
        connection, answer = await self._begin(request)
        try:
            yield answer
        finally:
            if answer.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _begin(self, request: bytes) -> tuple[_Connection, Answer]:
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                connection.close()
                continue
            try:
                return connection, await connection.ask(request)
            except TransportError as error:
                connection.close()
                # The server may have closed a kept connection before it saw the request: that says nothing of it.
                if error.outcome is not Outcome.RESET:
                    raise
            except BaseException:
                connection.close()
                raise
        connection = await self._connect()
        try:
            return connection, await connection.ask(request)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\n{self._header_lines}\r\n"
        if body is None:
            return f"{head}\r\n".encode()
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def _connect(self) -> _Connection:
        try:
            reader, writer = await asyncio.open_connection(self.origin.host, self.origin.port, ssl=self._tls)
        except OSError as error:
            ours = error.errno in (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)
            raise TransportError(Outcome.CLIENT_LIMIT if ours else Outcome.REFUSED, str(error)) from None
        return _Connection(reader, writer)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._leftover: tuple[int, bytes] = (0, b"")

    async def ask(self, request: bytes) -> Answer:
        head = b""
        try:
            self._writer.write(request)
            await self._writer.drain()
            while b"\r\n\r\n" not in head:
                at, data = await self.read()
                if not data and head:
                    raise TransportError(Outcome.CUT, "the connection ended within the head of the answer")
                if not data:
                    raise TransportError(Outcome.RESET, "the connection was closed before an answer")
                head += data
                if len(head) > HEAD_BYTES:
                    raise TransportError(Outcome.MALFORMED, f"the head of the answer is over {HEAD_BYTES} bytes")
        except OSError as error:
            raise TransportError(Outcome.CUT if head else Outcome.RESET, str(error)) from None
        head, _, rest = head.partition(b"\r\n\r\n")
        self._leftover = (at, rest)
        status, headers = _parse_head(head)
        return Answer(self, status, headers, _framing_of(status, headers))

    async def read(self) -> tuple[int, bytes]:
        """Empty at the end of the connection."""
        data = await self._reader.read(READ_BYTES)
        return time.monotonic_ns(), data

    @property
    def closed(self) -> bool:
        """It is known that nothing can be sent any more."""
        return self._writer.is_closing() or self._reader.at_eof()

    def take_leftover(self) -> tuple[int, bytes]:
        """What came with the head, and when."""
        taken, self._leftover = self._leftover, (0, b"")
        return taken

    def close(self) -> None:
        self._writer.close()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    status_line, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isascii() or not code.isdigit():
        raise TransportError(Outcome.MALFORMED, f"not an HTTP/1.1 answer: {status_line[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}


class _Framing(Protocol):
    """How the body is told from what follows it."""

    done: bool
    delimited: bool  # its end is known without the end of the connection

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> None:
        """The connection ended."""


def _framing_of(status: int, headers: dict[str, str]) -> _Framing:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _Chunked()
    if status in (204, 304):
        return _Sized(0)
    length = headers.get("content-length")
    if length is None:
        return _UntilClose()
    if not length.isascii() or not length.isdigit():
        raise TransportError(Outcome.MALFORMED, f"content-length {length[:40]!r}")
    return _Sized(int(length))


class _Sized:
    delimited = True

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> bytes:
        body = data[: self._left]
        self._left -= len(body)
        self.done = self._left == 0
        return body

    def end(self) -> None:
        raise TransportError(Outcome.CUT, f"the connection ended {self._left} bytes before the end of the answer")


class _UntilClose:
    delimited = False
    done = False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.done = True


class _Chunked:
    delimited = True

    def __init__(self) -> None:
        self.done = False
        self._buffer = bytearray()
        self._left = 0  # of the chunk under way, its closing line break included
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        body = bytearray()
        while self._buffer and not self.done:
            if self._left:
                self._take_chunk(body)
            elif not self._take_line():
                break
        return bytes(body)

    def _take_chunk(self, body: bytearray) -> None:
        taken = self._buffer[: self._left]
        in_chunk = max(self._left - 2, 0)
        body += taken[:in_chunk]
        self._left -= len(taken)
        del self._buffer[: len(taken)]

    def _take_line(self) -> bool:
        """A chunk's size, or a line of the trailer; False: it has not come whole."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES:
                raise TransportError(Outcome.MALFORMED, "a chunk without a size")
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        if self._in_trailer:
            self.done = not line
            return True
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise TransportError(Outcome.MALFORMED, f"chunk size {line[:40]!r}")
        if size := int(digits, 16):
            self._left = size + 2
        else:
            self._in_trailer = True
        return True

    def end(self) -> None:
        raise TransportError(Outcome.CUT, "the connection ended before the end of the answer")
