"""GET /v1/report: what was planned at the start, and what truly happened since."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from trivium.engine.client import EngineState
from trivium.serve.access.caller import asking
from trivium.serve.errors import ApiError
from trivium.serve.models.served import ServedModel
from trivium.serve.query import read_query
from trivium.serve.state import ServerState
from trivium.types.errors import EngineDeadError
from trivium.types.report import Report


class ReportQuery(Struct, frozen=True):
    model: str | None = None  # one that is loaded; None: the one that answers where none is named


async def report(state: ServerState, request: Request) -> Response:
    """Before a model is known: 503."""
    state.models.check_started()
    name = read_query(request, ReportQuery).model
    model = state.default if name is None else state.models.loaded_model(name)
    if model is None or not asking().may_use(model.name):
        raise ApiError(404, f"the model {str(name)[:200]!r} is not loaded here", param="model", code="model_not_found")
    told = await _as_of_now(model, state.limits.stats_seconds)
    if not asking().is_admin:
        told = _without_paths(told, model.name)
    return Response(msgspec.json.encode(told), media_type="application/json", headers={"cache-control": "no-store"})


async def _as_of_now(model: ServedModel, seconds: float) -> Report:
    """With the calls that went to the reference until now, where the engine answers."""
    told = model.card.report
    if told.happened is None or model.llm.state is not EngineState.READY:
        return told
    try:
        async with asyncio.timeout(seconds):
            execution = (await model.llm.stats()).execution
    except (EngineDeadError, TimeoutError):
        return told
    since = replace(told.happened, op_fallbacks=execution.op_fallbacks, demotions=execution.demotions)
    return replace(told, happened=since)


def _without_paths(told: Report, name: str) -> Report:
    """Where files lie on the machine is the business of those who run it."""
    model = None if told.model is None else replace(told.model, path=name)
    happened = None if told.happened is None else replace(told.happened, packed="")
    return replace(told, model=model, happened=happened)
