"""GET /v1/report: what was planned at the start, and what truly happened since."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from trivium.engine.client import EngineState
from trivium.serve.access.caller import asking
from trivium.serve.state import ServerState
from trivium.types.errors import EngineDeadError
from trivium.types.report import Report


async def report(state: ServerState, request: Request) -> Response:
    """Before the model is known: 503."""
    state.models.check_started()
    told = await _as_of_now(state, state.default.card.report)
    if not asking().is_admin:
        told = _without_paths(told, state.default.card.name)
    return Response(msgspec.json.encode(told), media_type="application/json", headers={"cache-control": "no-store"})


async def _as_of_now(state: ServerState, told: Report) -> Report:
    """With the calls that went to the reference until now, where the engine answers."""
    llm = state.default.llm
    if told.happened is None or llm.state is not EngineState.READY:
        return told
    try:
        async with asyncio.timeout(state.limits.stats_seconds):
            execution = (await llm.stats()).execution
    except (EngineDeadError, TimeoutError):
        return told
    return replace(told, happened=replace(told.happened, op_fallbacks=execution.op_fallbacks))


def _without_paths(told: Report, name: str) -> Report:
    """Where files lie on the machine is the business of those who run it."""
    model = None if told.model is None else replace(told.model, path=name)
    happened = None if told.happened is None else replace(told.happened, packed="")
    return replace(told, model=model, happened=happened)
