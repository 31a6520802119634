"""GET /v1/requests: why requests were slow. Who has a key sees his own, whoever runs the server all."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from trivium.observe.request_account import RequestAccount, meanings, sentences
from trivium.serve.access.caller import Caller, asking
from trivium.serve.errors import ApiError, invalid
from trivium.serve.state import ServerState

DEFAULT_COUNT, MAX_COUNT = 20, 1000


class Explained(Struct, frozen=True):
    account: RequestAccount
    sentences: list[str]
    meanings: dict[str, str]  # by cause, the largest first


class RequestList(Struct, frozen=True):
    data: list[RequestAccount]
    object: str = "list"


async def explain_request(state: ServerState, request: Request) -> Response:
    request_id = request.path_params["request_id"]
    account = state.recent.find(request_id)
    if account is None or (shown := _shown(account, asking())) is None:
        raise ApiError(404, f"no request {request_id[:200]!r} is among the last that ended here", param="request_id")
    return _json(Explained(shown, sentences(shown), meanings(shown)))


async def list_requests(state: ServerState, request: Request) -> Response:
    """?order=slowest|newest&limit=N"""
    order, limit = request.query_params.get("order", "newest"), request.query_params.get("limit", str(DEFAULT_COUNT))
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= MAX_COUNT:
        raise invalid(f"limit must be a number from 1 to {MAX_COUNT}, but is {limit[:40]!r}", "limit")
    if order not in ("slowest", "newest"):
        raise invalid(f"order must be 'slowest' or 'newest', but is {order[:40]!r}", "order")
    accounts = state.recent.slowest() if order == "slowest" else state.recent.newest()
    caller = asking()
    shown = [mine for account in accounts if (mine := _shown(account, caller)) is not None]
    return _json(RequestList(shown[: int(limit)]))


def _shown(account: RequestAccount, caller: Caller) -> RequestAccount | None:
    if caller.is_admin:
        return account
    return replace(account, preempted_by="") if account.caller == caller.name else None


def _json(answer: Explained | RequestList) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
