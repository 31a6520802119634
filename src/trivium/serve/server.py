"""Running the application on a socket: from the first byte it may answer to the last one it owes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from trivium.serve.access.tls import Tls
from trivium.serve.http_protocol import BoundedHttpProtocol
from trivium.serve.state import ServerState


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by `WindDown`, which lets running answers end while new requests are told to go away."""
        yield


class WindDown:
    """The first SIGTERM or SIGINT closes the door and waits for the answers under way; the second does not wait."""

    def __init__(self, state: ServerState, drain_seconds: float, say: Callable[[str], None]) -> None:
        self._state = state
        self._drain_seconds = drain_seconds
        self._say = say
        self._asked = asyncio.Event()
        self._asked_again = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._asked.is_set():
            self._asked_again.set()
        self._state.draining = True
        self._asked.set()

    async def wait_asked(self) -> None:
        await self._asked.wait()

    async def drain(self) -> bool:
        """Until no answer is under way, the time is up, or the second signal; whether all answers ended."""
        if self._state.in_flight:
            self._say(f"finishing {self._state.in_flight} requests, for {self._drain_seconds:g} s at most")
        waits = [asyncio.create_task(event.wait()) for event in (self._state.idle, self._asked_again)]
        await asyncio.wait(waits, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self._state.in_flight:
            self._say(f"{self._state.in_flight} requests are cut off")
        return self._state.in_flight == 0


class HttpServer:
    """Listens from `start` on; says 503 by itself until the engine is ready and once the server winds down."""

    def __init__(self, state: ServerState, listener: socket.socket, app: ASGIApp, tls: Tls | None = None) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app,
            http=BoundedHttpProtocol.with_limits(state.limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=state.limits.idle_connection_seconds,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = tls.context if tls is not None else None
        self._server = _Uvicorn(config)
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self, *, at_once: bool) -> None:
        self._server.should_exit = True
        self._server.force_exit = at_once
        if self._serving is not None:
            await self._serving
