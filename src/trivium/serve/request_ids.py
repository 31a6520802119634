"""Request ids: in every answer, for errors and logs to name."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


class RequestIds:
    """Each request has an id, the client's own where it sent one that can be shown, and each answer names it."""

    def __init__(self, app: ASGIApp, max_chars: int) -> None:
        self._app = app
        self._showable = re.compile(rf"[!-~]{{1,{max_chars}}}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if self._showable.fullmatch(sent) else new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The second is what Anthropic's clients read.
                MutableHeaders(scope=message).update({"x-request-id": request_id, "request-id": request_id})
            await send(message)

        await self._app(scope, receive, send_with_id)
