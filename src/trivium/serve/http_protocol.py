"""uvicorn's HTTP/1.1 protocol with bounds on what a client may send before the application sees a request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.request_ids import new_request_id
from trivium.serve.request_times import ARRIVED


class BoundedHttpProtocol(HttpToolsProtocol):
    """Headers are bounded in bytes, number and time, and every refusal has the JSON envelope."""

    limits: Limits  # given by `with_limits`

    @classmethod
    def with_limits(cls, limits: Limits) -> type[BoundedHttpProtocol]:
        return type("BoundedHttpProtocol", (cls,), {"limits": limits})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0  # of unfinished headers, beyond the piece of data in which they began
        self._headers_began = False
        self._header_timer: asyncio.TimerHandle | None = None  # runs while headers are awaited
        self._cycles: list[RequestResponseCycle] = []  # whose answers are not complete; several when pipelined

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._headers_began = False
        super().data_received(data)
        if self._header_timer is not None and not self._headers_began:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes:
                self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][ARRIVED] = time.monotonic()
        self._header_bytes = 0
        self._headers_began = True
        if self._header_timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._cancel_header_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header_bytes or len(self.headers) > self.limits.header_count:
            self._refuse_headers()
            return
        super().on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "the bytes on this connection are not an HTTP request", code="invalid_http"))

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._on_header_timeout)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        seconds = self.limits.header_seconds
        self._refuse(ApiError(408, f"the headers did not come within {seconds:g} s", code="headers_too_slow"))

    def _refuse_headers(self) -> None:
        self._cancel_header_timer()
        limits = self.limits
        message = f"the headers may have {limits.header_bytes} bytes and {limits.header_count} fields at most"
        self._refuse(ApiError(431, message, code="headers_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Answer and cut the connection, unless an answer is already on its way over it."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = error.encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                "x-request-id": new_request_id(),
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[error.status] + head.encode() + b"\r\n" + body)
        self.transport.close()
