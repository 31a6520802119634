"""Requests that this server sends to itself: the same routes, the same checks, no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.types import ASGIApp, Message


class Answer(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class InProcess:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def post(self, path: str, body: bytes) -> Answer:
        """The whole answer to a JSON body. Cancelling it is what a client that goes away does."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
            "client": None,
            "server": None,
            "state": {},
        }
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        status, headers, parts = 0, {}, []

        async def receive() -> Message:
            if not incoming:
                await asyncio.Future()  # nobody leaves
            return incoming.pop()

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return Answer(status, headers, b"".join(parts))
