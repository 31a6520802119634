"""The answer to any failure, in the shape that the client's language has for it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.anthropic import errors as anthropic
from trivium.serve.errors import as_api_error
from trivium.serve.ollama import errors as ollama


async def answer_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler."""
    request_id: str = request.state.request_id
    failure = as_api_error(error, request_id)
    status, body = failure.status, failure.encode()
    if request.scope["path"].startswith("/api/"):
        body = ollama.encode_error(failure)
    elif speaks_anthropic(request):
        status, body = anthropic.status_of(failure), anthropic.encode_error(failure, request_id)
    return Response(body, status, failure.headers, media_type="application/json")


def speaks_anthropic(request: Request) -> bool:
    """Routes that only Anthropic has, and those whose clients say that they are Anthropic's."""
    path: str = request.scope["path"]
    return path == "/messages" or path.startswith("/messages/") or "anthropic-version" in request.headers
