"""The one door to all routes: where keys are needed, nobody comes in without one, known path or not."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.serve.access.caller import ANYBODY, Caller, acting_as
from trivium.serve.access.keyring import Keyring
from trivium.serve.error_answers import answer_error
from trivium.serve.errors import ApiError

# What may be read without a key: whether the server is up, and the web page, which asks its reader for one.
OPEN_PATHS = frozenset({"/", "/health", "/health/progress"})
OPEN_FOLDER = "/page/"


class Gate:
    def __init__(self, app: ASGIApp, keyring: Keyring, *, opens_metrics: bool = False) -> None:
        self._app = app
        self._keyring = keyring
        self._open_paths = OPEN_PATHS | {"/metrics"} if opens_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            caller = self._caller(headers, scope)
        except Exception as error:
            response = await answer_error(Request(scope), error)
            await response(scope, receive, send)
            return
        if caller is not ANYBODY:
            scope["state"]["key"] = caller.name
        with acting_as(caller):
            await self._app(scope, receive, _telling_what_is_left(caller, send))

    def _caller(self, headers: Headers, scope: Scope) -> Caller:
        caller = self._keyring.caller_of(_secrets(headers))
        if caller is not None:
            return caller
        if not self._is_open(scope):
            raise _refusal(has_key=any(_secrets(headers)))
        return Caller(is_admin=False)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope["method"] in ("GET", "HEAD") and (path in self._open_paths or path.startswith(OPEN_FOLDER))


def _secrets(headers: Headers) -> Iterator[str]:
    """OpenAI's, Anthropic's and Azure's clients each send theirs in a header of its own."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (secret := secret.strip()):
        yield secret
    for name in ("x-api-key", "api-key"):
        if secret := headers.get(name, "").strip():
            yield secret


def _refusal(*, has_key: bool) -> ApiError:
    message = (
        "the API key is not known here" if has_key else "this server needs an API key, as Authorization: Bearer <key>"
    )
    code = "invalid_api_key" if has_key else "missing_api_key"
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer", "x-should-retry": "false"})


def _telling_what_is_left(caller: Caller, send: Send) -> Send:
    allowance = caller.allowance
    if allowance is None:
        return send

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(allowance.headers())
        await send(message)

    return tell
