"""Offers a server more than it can do, and takes the time of each answer: a program of its own, so that neither a test's
event loop nor a client library adds to what is measured.

    python flood.py '{"port": 8000, "path": "/v1/completions", "body": {…}, "rate": 40.0, "seconds": 60.0}'

Each request has a connection of its own and goes out when it is due, whether or not others were answered (open loop); with
`at_once` in place of `rate`, when another was answered (closed loop). When an answer came is told by the kernel, as of the
moment in which its last bytes reached the client's socket: on a machine that is full of work this program may be woken late,
and that is not the server's time. Prints one JSON object, a Tally.
"""

from __future__ import annotations

import heapq
import json
import re
import selectors
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import msgspec
from msgspec import Struct

# linux/net_tstamp.h: the time at which a packet was received, as the kernel's software saw it, on CLOCK_REALTIME.
SO_TIMESTAMPING = 37
RX_SOFTWARE, SOFTWARE = 1 << 3, 1 << 4
TIMESPEC = struct.Struct("qq")

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
RETRY_AFTER = re.compile(rb"\r\nretry-after-ms: *(\d+)", re.IGNORECASE)
MARK = "{number}"  # in the body's strings: replaced, so that no two clients ask for the same


class Plan(Struct, frozen=True):
    port: int
    path: str
    body: dict[str, Any]
    seconds: float  # for which new clients come
    rate: float = 0.0  # of them, a second
    at_once: int = 0  # of them; 0: `rate` says how many come
    obeys: bool = False  # who is refused comes back once, when it was told to


class Try(Struct, frozen=True):
    """Times are seconds since the flood began."""

    client: int
    attempt: int  # 1, or 2 for who came back
    sent: float
    answered: float
    status: int  # 0: the connection was cut
    retry_after: float | None

    @property
    def seconds(self) -> float:
        return self.answered - self.sent


class Tally(Struct, frozen=True):
    plan: Plan
    tries: list[Try]
    most_late: float  # seconds by which a request was sent later than it was due
    cpu_seconds: float  # of this program

    @property
    def answers_a_second(self) -> float:
        """Of those that came while clients did."""
        return sum(one.status == 200 and one.answered < self.plan.seconds for one in self.tries) / self.plan.seconds


def flood(plan: Plan) -> Tally:
    """In a process of its own, until every request has been answered."""
    command = [sys.executable, __file__, msgspec.json.encode(plan).decode()]
    return msgspec.json.decode(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout, type=Tally)


class Connection:
    def __init__(self, client: int, attempt: int, port: int, request: bytes) -> None:
        self.client = client
        self.attempt = attempt
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | SOFTWARE)
        self.received = b""
        self.last_bytes = 0.0
        self.sent = time.time()
        self.socket.sendall(request)
        self.socket.setblocking(False)

    def read(self) -> bool:
        """Whether the answer is complete, or there will be none."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 16, 256)
        except OSError:
            data, ancillary = b"", []
        if data:
            self.last_bytes = kernel_time(ancillary) or time.time()
            self.received += data
        return not data or self._is_complete()

    def _is_complete(self) -> bool:
        head, found, body = self.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        return bool(found) and length is not None and len(body) >= int(length[1])

    def tried(self, epoch: float) -> Try:
        retry_after = RETRY_AFTER.search(self.received)
        return Try(
            client=self.client,
            attempt=self.attempt,
            sent=self.sent - epoch,
            answered=(self.last_bytes or time.time()) - epoch,
            status=int(self.received[9:12]) if self._is_complete() else 0,
            retry_after=None if retry_after is None else int(retry_after[1]) / 1000,
        )


def kernel_time(ancillary: list[tuple[int, int, bytes]]) -> float | None:
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
            seconds, nanoseconds = TIMESPEC.unpack_from(content)
            return seconds + nanoseconds / 1e9
    return None


class Flood:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._selector = selectors.DefaultSelector()
        self._tries: list[Try] = []
        # When, who, which attempt. All who come of themselves, and later those who were told to come back.
        self._due = [(number / plan.rate, number, 1) for number in range(int(plan.rate * plan.seconds))]
        self._due += [(0.0, number, 1) for number in range(plan.at_once)]
        self._num_clients = len(self._due)
        self._open = 0
        self._most_late = 0.0
        self._epoch = 0.0

    def run(self) -> Tally:
        self._epoch = time.time()
        while self._due or self._open:
            now = time.time() - self._epoch
            while self._due and self._due[0][0] <= now:
                due, client, attempt = heapq.heappop(self._due)
                self._most_late = max(self._most_late, now - due)
                self._send(client, attempt)
                now = time.time() - self._epoch
            wait = max(self._due[0][0] - now, 0.0) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.data.read():
                    self._end(key.data)
        return Tally(self._plan, self._tries, self._most_late, time.process_time())

    def _send(self, client: int, attempt: int) -> None:
        connection = Connection(client, attempt, self._plan.port, request_of(self._plan, client))
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._open += 1

    def _end(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open -= 1
        tried = connection.tried(self._epoch)
        self._tries.append(tried)
        if self._plan.obeys and tried.attempt == 1 and tried.retry_after is not None:
            heapq.heappush(self._due, (tried.answered + tried.retry_after, tried.client, 2))
        if self._plan.at_once and tried.answered < self._plan.seconds:
            heapq.heappush(self._due, (tried.answered, self._num_clients, 1))
            self._num_clients += 1


def request_of(plan: Plan, client: int) -> bytes:
    body = json.dumps(plan.body).replace(MARK, str(client)).encode()
    head = (
        f"POST {plan.path} HTTP/1.1\r\nhost: 127.0.0.1:{plan.port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(Flood(msgspec.json.decode(sys.argv[1], type=Plan)).run()))
