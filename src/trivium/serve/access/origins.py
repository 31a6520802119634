"""Which pages may ask, on a server that only this machine reaches.

Without this check, any page that a browser on the machine shows could: by letting its own name resolve to 127.0.0.1
(DNS rebinding), or by sending requests whose answers it does not need to see.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.serve.error_answers import answer_error
from trivium.serve.errors import ApiError

ANY = "*"


class LocalOnly:
    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        """`hosts`: names by which the server may be called beside its own; `origins`: of pages that may ask."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._answers_to(host):
            refusal = ApiError(
                403,
                f"this server is not called {host[:100]!r}; --allowed-host gives it another name",
                code="host_not_allowed",
            )
        elif origin is not None and not self._takes(origin, host):
            refusal = ApiError(
                403,
                f"pages of {origin[:100]!r} may not ask here; --cors-origin allows them to",
                code="origin_not_allowed",
            )
        else:
            await self._app(scope, receive, send)
            return
        response = await answer_error(Request(scope), refusal)
        await response(scope, receive, send)

    def _answers_to(self, host: str) -> bool:
        """An address cannot be made to resolve to another one, and what is under localhost resolves to this machine."""
        name = _without_port(host.lower())
        if not name or name == "localhost" or name.endswith(".localhost") or {name, ANY} & self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _takes(self, origin: str, host: str) -> bool:
        return bool({origin, ANY} & self._origins) or _place(origin) == host.lower()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _place(origin: str) -> str | None:
    """The host and port of a page's origin, as its requests to the same server name them."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None
