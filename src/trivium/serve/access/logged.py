"""Tells the access log of each request, when its answer has ended."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.serve.access.access_log import AccessLog, Entry

PATH_CHARS = 1024  # a longer path is cut


class Logged:
    def __init__(self, app: ASGIApp, log: AccessLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came, began = datetime.now(UTC), time.monotonic()
        status: int | None = None
        first_byte: float | None = None
        size, complete = 0, False

        async def count(message: Message) -> None:
            nonlocal status, first_byte, size, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if first_byte is None:
                    first_byte = time.monotonic() - began
            await send(message)

        try:
            await self._app(scope, receive, count)
        finally:
            self._log.write(
                Entry(
                    time=came.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    request_id=scope["state"]["request_id"],
                    client=scope["client"][0] if scope.get("client") else None,
                    key=scope["state"].get("key"),
                    method=scope["method"],
                    path=scope["path"][:PATH_CHARS],
                    status=status,
                    bytes=size,
                    seconds=round(time.monotonic() - began, 6),
                    first_byte_seconds=None if first_byte is None else round(first_byte, 6),
                    complete=complete,
                )
            )
