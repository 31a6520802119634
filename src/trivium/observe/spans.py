"""Requests as OpenTelemetry spans, sent as OTLP in JSON over HTTP: one for the request, one for each cause under it.

A cause's span has its length, and its place in the order in which causes usually come; where a request decoded in several
stretches, they are told as one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import urllib.request
from collections import deque
from typing import Any

import msgspec

from trivium.observe.events import Event, RequestEnded
from trivium.observe.request_account import MEANINGS, RequestAccount
from trivium.observe.request_end import RequestEnd

log = logging.getLogger(__name__)

NANO = 1_000_000_000
MAX_WAITING = 4096  # requests; of more, the oldest are dropped and counted
BATCH = 256
EVERY_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
SERVER_KIND, INTERNAL_KIND = 2, 1  # of SpanKind
OK, ERROR = 1, 2  # of StatusCode


def spans_of(account: RequestAccount) -> list[dict[str, Any]]:
    trace = hashlib.blake2b(account.request_id.encode(), digest_size=16).hexdigest()
    whole = secrets.token_hex(8)
    begin = int(account.received * NANO)
    end = begin + int(account.seconds * NANO)
    counts = {
        name: value
        for name, value in msgspec.structs.asdict(account).items()
        if isinstance(value, int | float | str) and name not in ("received", "seconds")
    }
    failed = account.end in (RequestEnd.FAILED, RequestEnd.OVERLOADED)
    spans = [
        {
            "traceId": trace,
            "spanId": whole,
            "name": "request",
            "kind": SERVER_KIND,
            "startTimeUnixNano": str(begin),
            "endTimeUnixNano": str(end),
            "attributes": [_attribute(f"trivium.{name}", value) for name, value in counts.items()],
            "status": {"code": ERROR if failed else OK},
        }
    ]
    at = float(begin)
    for cause in (name for name in MEANINGS if name in account.causes):
        until = at + account.causes[cause] * NANO
        spans.append(
            {
                "traceId": trace,
                "spanId": secrets.token_hex(8),
                "parentSpanId": whole,
                "name": cause,
                "kind": INTERNAL_KIND,
                "startTimeUnixNano": str(int(at)),
                "endTimeUnixNano": str(int(until)),
            }
        )
        at = until
    return spans


def _attribute(name: str, value: int | float | str) -> dict[str, Any]:
    match value:
        case str():
            return {"key": name, "value": {"stringValue": str(value)}}
        case int():
            return {"key": name, "value": {"intValue": str(value)}}
    return {"key": name, "value": {"doubleValue": value}}


class SpanExporter:
    """A listener that sends what it hears to a collector, once a second and from a thread: nobody waits for it."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: the collector's base, `/v1/traces` is added; http or https."""
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._waiting: deque[RequestAccount] = deque(maxlen=MAX_WAITING)
        self.num_dropped = 0

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestEnded):
            self.num_dropped += len(self._waiting) == MAX_WAITING
            self._waiting.append(event.account)

    async def run(self) -> None:
        """Until cancelled, and then once more."""
        try:
            while True:
                await asyncio.sleep(EVERY_SECONDS)
                await self._send_waiting()
        finally:
            await asyncio.shield(self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                await asyncio.to_thread(self._send, batch)
            except Exception as error:  # a collector may be down, or answer anything
                self.num_dropped += len(batch)
                log.warning("%d traces could not be sent to %s: %s", len(batch), self._url, error)
                return

    def _send(self, batch: list[RequestAccount]) -> None:
        spans = [span for account in batch for span in spans_of(account)]
        resource = {"attributes": [_attribute("service.name", "trivium")]}
        body = {
            "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "trivium"}, "spans": spans}]}]
        }
        request = urllib.request.Request(
            self._url, msgspec.json.encode(body), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read()
