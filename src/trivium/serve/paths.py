"""One spelling for each route, whatever clients make of it."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send


class NormalPaths:
    """Every route answers with and without `/v1`, and to paths in which a client's joining doubled a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = re.sub(r"//+", "/", scope["path"])
        if path.startswith("/v1/"):
            path = path.removeprefix("/v1")
        if len(path) > 1:
            path = path.removesuffix("/")
        await self._app({**scope, "path": path}, receive, send)
