"""Pages of other origins that browsers may let ask here, by their name; by default none."""

from __future__ import annotations

from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# What a page may read of an answer, beside its body.
TOLD = (
    "x-request-id",
    "request-id",
    "retry-after",
    "retry-after-ms",
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
)


def with_cors(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """Keys come in headers, which a page must know; no cookies are in play, so none are allowed."""
    return CORSMiddleware(
        app,
        allow_origins=[*origins],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=TOLD,
    )
