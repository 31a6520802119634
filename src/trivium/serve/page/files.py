"""GET / and /page/{name}: the files of the web page, read once, each with its type, its tag and what it may do."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.errors import ApiError
from trivium.serve.state import ServerState

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# The page runs its own scripts and speaks with its own server, and that is all: no text of a model can become a script,
# a frame, a form or a request to somebody else.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # may be kept, but asked about: the tag answers
}


class PageFile(Struct, frozen=True):
    body: bytes
    media_type: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """By name; a name that is not among them is no file, whatever it looks like."""
    found = {}
    for entry in resources.files(__package__).joinpath("site").iterdir():
        media_type = MEDIA_TYPES.get(PurePosixPath(entry.name).suffix)
        if media_type is not None:
            body = entry.read_bytes()
            found[entry.name] = PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


async def front_door(state: ServerState, request: Request) -> Response:
    """People get the page; Ollama's clients, which look here whether a server is up, the words that they expect."""
    headers = {"vary": "accept"}
    if "text/html" in request.headers.get("accept", ""):
        return _answer(request, page_files()["index.html"], headers)
    return Response(b"Ollama is running", media_type="text/plain", headers=headers)


async def page_file(state: ServerState, request: Request) -> Response:
    found = page_files().get(request.path_params["name"])
    if found is None:
        raise ApiError(404, "the web page has no such file", code="route_not_found")
    return _answer(request, found, {})


def _answer(request: Request, file: PageFile, headers: dict[str, str]) -> Response:
    headers = {**HEADERS, **headers, "etag": file.tag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "content-type": file.media_type})
