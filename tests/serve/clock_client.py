"""A client that does little but look at the clock: streams over sockets that are open beforehand, in a process of its own. When
a piece came is told by the kernel: that this program may be woken late is not the server's time. Run as a program: a plan comes
in as JSON, what was seen goes out."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from flood import RX_SOFTWARE, SO_TIMESTAMPING, SOFTWARE, kernel_time

PATH = "/v1/chat/completions"
CHOICE = b'"choices":[{'  # in every event that tells of a token


@dataclass
class Seen:
    """One request. Seconds since 1970, as the kernel's own times are."""

    request_id: str
    sent: float
    first: float = 0.0  # event that tells of a token
    last: float = 0.0
    end: dict[str, Any] = field(default_factory=dict)  # the last event, with usage and metrics

    @property
    def time_to_first_token(self) -> float:
        return self.first - self.sent

    @property
    def inter_token_latency(self) -> float:
        return (self.last - self.first) / (self.end["usage"]["completion_tokens"] - 1)


def watch(port: int, bodies: list[dict[str, Any]], concurrency: int, seconds: float) -> list[Seen]:
    """So many requests at a time, until all were answered."""
    plan = {"port": port, "bodies": bodies, "concurrency": concurrency}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )
    return [Seen(**one) for one in json.loads(done.stdout)]


class _Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | SOFTWARE)
        self._rest = b""
        self._seen: Seen | None = None

    def ask(self, number: int, body: dict[str, Any]) -> None:
        request_id = f"clock-{number}-{time.monotonic_ns()}"
        data = json.dumps(body).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-request-id: {request_id}"
        )
        message = f"{head}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        self._rest = b""
        self._seen = Seen(request_id, time.time())
        self.socket.sendall(message)

    def read(self) -> Seen | None:
        """What was seen of the answer, once it is whole. Chunks of the transfer are not told apart: events are whole lines."""
        data, ancillary, _, _ = self.socket.recvmsg(1 << 16, 256)
        now = kernel_time(ancillary) or time.time()
        assert data and self._seen is not None, "the server closed the connection"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: "):
                assert not line.startswith(b"HTTP/1.1") or b" 200 " in line, line
            elif CHOICE in line:
                self._seen.first = self._seen.first or now
                self._seen.last = now
            elif not line.startswith(b"data: [DONE]"):
                self._seen.end = json.loads(line[6:])
        return self._seen if self._rest.endswith(b"0\r\n\r\n") or lines[-2:] == [b"0\r", b"\r"] else None


def main() -> None:
    plan = json.load(sys.stdin)
    waiting = deque(enumerate(plan["bodies"]))
    seen: list[Seen] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(plan["concurrency"]):
            connection = _Connection(plan["port"])
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            if waiting:
                connection.ask(*waiting.popleft())
        while len(seen) < len(plan["bodies"]):
            for key, _ in selector.select():
                if (done := key.data.read()) is not None:
                    seen.append(done)
                    if waiting:
                        key.data.ask(*waiting.popleft())
    json.dump([asdict(one) for one in seen], sys.stdout)


if __name__ == "__main__":
    main()
