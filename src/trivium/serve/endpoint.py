"""The shells around routes: admission, counting, and what becomes of each kind of end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trivium.faults import fault_point
from trivium.serve.access.caller import asking
from trivium.serve.errors import ApiError, ClientGoneError, as_api_error
from trivium.serve.request_times import ARRIVED
from trivium.serve.sse import EventStreamResponse
from trivium.serve.state import ServerState
from trivium.serve.visit import visiting

Handler = Callable[[ServerState, Request], Awaitable[Response | EventStreamResponse]]


class GenerationEndpoint:
    """Around every route that makes text. An ASGI application, because a request lasts until its answer's last byte."""

    def __init__(self, state: ServerState, handler: Handler) -> None:
        self._state = state
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id: str = scope["state"]["request_id"]
        try:
            async with self._state.request(request_id, scope["state"].get(ARRIVED)) as span:
                send = span.times.timed(send)
                try:
                    fault_point("http.admit")
                    self._state.check_open()
                    with visiting(), asking().request():
                        async with AsyncExitStack() as leases:
                            scope["state"]["leases"] = leases  # of models, until the answer's last byte
                            response = await self._handler(self._state, Request(scope, receive))
                            await response(scope, receive, send)
                except ClientGoneError:
                    raise
                except Exception as error:
                    raise as_api_error(error, request_id) from error
                if isinstance(response, EventStreamResponse):
                    span.failure = response.failure
        except ClientGoneError:
            return


class PlainEndpoint:
    """Around every route that makes no text."""

    def __init__(self, state: ServerState, handler: Handler, *, needs_engine: bool, for_admins: bool = False) -> None:
        """`for_admins`: it changes what the server has for all."""
        self._state = state
        self._handler = handler
        self._needs_engine = needs_engine
        self._for_admins = for_admins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._for_admins:
            check_admin()
        if self._needs_engine:
            self._state.models.check_started()
        try:
            async with AsyncExitStack() as leases:
                scope["state"]["leases"] = leases
                response = await self._handler(self._state, Request(scope, receive))
                await response(scope, receive, send)
        except ClientGoneError:
            return
        except Exception as error:  # what is not an ApiError would cost the client its connection, too
            raise as_api_error(error, scope["state"]["request_id"]) from error


def check_admin() -> None:
    """Raise where the caller may not change what the server has for all."""
    if not asking().is_admin:
        raise ApiError(403, "this needs a key with admin rights", code="admin_required")
