"""Sending requests over raw sockets that are kept open, and judging what comes back."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fuzz_requests import UNANSWERABLE, Delivery, FuzzRequest, Requests

ANSWER_SECONDS = 60.0  # a request that is not answered by then has stalled
BEAT_SECONDS = 0.1
OUR_FAULT = re.compile(rb'"(internal_error|server_error|request_failed|storage_failed|engine_dead)"')


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ends_connection(self) -> bool:
        return self.headers.get("connection", "").lower() == "close" or self.status == 101


@dataclass
class Findings:
    statuses: dict[str, Counter[int]] = field(default_factory=dict)  # of answers, by route
    problems: list[str] = field(default_factory=list)
    beats: int = 0
    slowest_beat: float = 0.0  # seconds

    @property
    def num_answered(self) -> int:
        return sum(counter.total() for counter in self.statuses.values())

    def blame(self, problem: str, request: FuzzRequest) -> None:
        self.problems.append(f"{problem}\n  {request.shown()}")

    def judge(self, request: FuzzRequest, answer: Answer) -> None:
        self.statuses.setdefault(request.route, Counter())[answer.status] += 1
        if problem := what_is_wrong(request, answer):
            self.blame(f"{problem}: {answer.status} {answer.body[:600]!r}", request)


def what_is_wrong(request: FuzzRequest, answer: Answer) -> str | None:
    if answer.status >= 500:
        return "the server took the blame"
    if OUR_FAULT.search(answer.body):
        return "an answer that began well ended in a failure of the server"
    if request.method == "HEAD" or answer.headers.get("content-type") != "application/json":
        return None if answer.status < 400 or request.method == "HEAD" else "a refusal that is no JSON"
    try:
        body = json.loads(answer.body)
    except ValueError:
        return "the answer is not JSON"
    return None if answer.status < 400 or _is_envelope(body) else "a refusal in a shape that no client knows"


def _is_envelope(body: object) -> bool:
    """OpenAI's, Anthropic's or Ollama's."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, str):
        return bool(error)
    return isinstance(error, dict) and bool(error.get("message")) and bool(error.get("type"))


class Connection:
    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.last = ""  # what was sent before over the same connection

    async def send(self, data: bytes) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, method: str) -> Answer:
        """Raises EOFError or OSError where the connection ended first."""
        assert self._reader is not None
        while True:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            status = int(status_line.split()[1])
            if status != 100:
                break
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        return Answer(status, headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        assert self._reader is not None
        if headers.get("transfer-encoding") != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", 0)))
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def deliver(connection: Connection, request: FuzzRequest, chance: random.Random) -> list[Answer]:
    """Every answer that came. Raises EOFError or OSError where the connection ended before it."""
    head, body = request.head(f"content-length: {len(request.body)}"), request.body
    match request.delivery:
        case Delivery.WHOLE:
            await connection.send(head + body)
        case Delivery.TWICE:
            await connection.send((head + body) * 2)
            return [await connection.read(request.method), await connection.read(request.method)]
        case Delivery.CHUNKED:
            await connection.send(request.head("transfer-encoding: chunked") + _chunked(body, chance))
        case Delivery.BAD_CHUNKS:
            chunks = _chunked(body, chance)
            chunks = chance.choice(
                (
                    b"zz\r\n" + chunks,
                    chunks[:-5] + b"-5\r\n",
                    b"ffffffffffffffffff\r\n" + chunks,
                    chunks.replace(b"\r\n", b"\n"),
                )
            )
            await connection.send(request.head("transfer-encoding: chunked") + chunks + b"\r\n\r\n")
        case Delivery.IN_PIECES:
            whole = head + body
            cuts = sorted(chance.randrange(len(whole)) for _ in range(4))
            for first, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
                await connection.send(whole[first:end])
                await asyncio.sleep(0.01)
        case Delivery.TRUNCATED:
            await connection.send(head + body[: len(body) // 2])
            connection.close()
            return []
        case Delivery.ABANDONED:
            await connection.send(head + body)
            await asyncio.sleep(chance.choice((0, 0.002, 0.01)))
            connection.close()
            return []
        case Delivery.GARBAGE:
            await connection.send(body)
            async with asyncio.timeout(0.2):  # half a request is not refused at once
                return [await connection.read("GET")]
    return [await connection.read(request.method)]


def _chunked(body: bytes, chance: random.Random) -> bytes:
    parts = []
    while body:
        size = chance.randint(1, max(1, len(body)))
        parts.append(b"%x\r\n%b\r\n" % (size, body[:size]))
        body = body[size:]
    return b"".join(parts) + b"0\r\n\r\n"


async def fuzz(port: int, requests: Requests, count: int, *, num_connections: int) -> Findings:
    """So many requests, over several connections at once, while another asks whether the server is still there."""
    findings = Findings()
    beating = asyncio.create_task(_beat(port, findings))
    left = iter(range(count))
    workers = (_work(port, requests, left, findings, random.Random(number)) for number in range(num_connections))
    await asyncio.gather(*workers)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    return findings


async def _work(port: int, requests: Requests, left: Iterator[int], findings: Findings, chance: random.Random) -> None:
    connection = Connection(port)
    for _ in left:
        request = requests.draw()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answers = await deliver(connection, request, chance)
        except TimeoutError:
            answers = []
            if request.delivery not in UNANSWERABLE:
                findings.blame("no answer came", request)
        except (EOFError, OSError) as error:
            answers = []
            if request.delivery not in UNANSWERABLE and not _may_be_cut(request):
                findings.blame(f"the connection was cut: {error!r}, after {connection.last}", request)
            connection.close()
        connection.last = request.shown()
        for answer in answers:
            findings.judge(request, answer)
            if answer.status == 200:
                requests.learn(request, answer.body)
        if request.delivery in UNANSWERABLE or not answers or any(answer.ends_connection for answer in answers):
            connection.close()
    connection.close()


def _may_be_cut(request: FuzzRequest) -> bool:
    """Headers that are refused are answered, but the answer is lost where more was on its way; so is the second of two
    after a refusal that ends the connection."""
    has_odd_headers = any(not (name.isascii() and value.isprintable()) for name, value in request.headers)
    too_large = len(request.headers) > 200 or len(request.head()) > 60_000
    return request.delivery is Delivery.TWICE or has_odd_headers or too_large


async def _beat(port: int, findings: Findings) -> None:
    connection = Connection(port)
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                answer = await connection.read("GET")
        except (TimeoutError, EOFError, OSError) as error:
            findings.problems.append(f"the server did not say that it is there: {error!r}")
            return
        if answer.status != 200:
            findings.problems.append(f"the server is not well: {answer}")
        findings.beats += 1
        findings.slowest_beat = max(findings.slowest_beat, time.monotonic() - began)
        await asyncio.sleep(BEAT_SECONDS)
