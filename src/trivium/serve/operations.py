"""GET /health and /metrics: for those who run the server."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.engine.client import EngineState
from trivium.engine.messages import Stats
from trivium.faults import fault_point
from trivium.observe.events import EngineSample
from trivium.observe.prometheus import CONTENT_TYPE
from trivium.serve.errors import not_now
from trivium.serve.models.served import ServedModel
from trivium.serve.state import ServerState
from trivium.types.errors import EngineDeadError
from trivium.types.overload import AdmissionStats


async def health(state: ServerState, request: Request) -> Response:
    """200 only while a request sent now would be taken and the engine's loop turns."""
    state.check_open()
    try:
        await state.models.check_health()
    except EngineDeadError as error:
        raise not_now(str(error), "engine_not_ready") from None
    return Response(b'{"status":"ok"}', media_type="application/json")


async def progress(state: ServerState, request: Request) -> Response:
    """200 while the engine gets on: its loop turns, and has not taken longer for one turn than it may."""
    if state.default.llm.state is not EngineState.READY:
        raise not_now(f"the engine is {state.default.llm.state}", "engine_not_ready")
    told = state.default.llm.health()
    return Response(msgspec.json.encode(told), 503 if told.stalled else 200, media_type="application/json")


async def metrics(state: ServerState, request: Request) -> Response:
    """The server's own numbers always; an engine's as of now, or as it last told them while it does not answer."""
    fault_point("metrics.scrape")
    loaded = state.models.loaded()
    await asyncio.gather(*(_tell_sample(state, berth.model) for berth in loaded))
    state.metrics.forget_engines({berth.model.name for berth in loaded})
    return Response(state.metrics.exposition(state.in_flight), media_type=CONTENT_TYPE)


async def _tell_sample(state: ServerState, model: ServedModel) -> None:
    if model.llm.state is not EngineState.READY:
        return
    try:
        async with asyncio.timeout(state.limits.stats_seconds):
            stats = await model.llm.stats()
            state.emit(_sample(model.name, stats, model.llm.admission_stats(), model.llm.restarts))
    except (EngineDeadError, TimeoutError):
        pass


def _sample(model: str, stats: Stats, admission: AdmissionStats, restarts: int) -> EngineSample:
    scheduler = stats.scheduler
    return EngineSample(
        model=model,
        running=scheduler.running,
        waiting=scheduler.waiting,
        free_blocks=scheduler.free_blocks,
        held_blocks=scheduler.held_blocks,
        cached_blocks=scheduler.cached_blocks,
        preemptions=scheduler.preemptions,
        evicted_blocks=scheduler.evicted_blocks,
        taken_blocks=scheduler.taken_blocks,
        freed_blocks=scheduler.freed_blocks,
        moved_bytes=scheduler.moved_bytes,
        cached_tokens=scheduler.cached_tokens,
        computed_tokens=scheduler.computed_prompt_tokens,
        left_tokens=scheduler.left_prompt_tokens,
        recomputed_tokens=scheduler.recomputed_tokens,
        steps=stats.num_steps,
        step_seconds=stats.step_seconds,
        queue_seconds=scheduler.queue_seconds,
        planned_ahead=scheduler.planned_ahead,
        discarded=scheduler.discarded,
        held_back=scheduler.held_back,
        failed_steps=scheduler.failed_steps,
        grammar=stats.grammar,
        replayed_steps=stats.execution.replayed_steps,
        eager_steps=stats.execution.eager_steps,
        op_fallbacks=stats.execution.op_fallbacks,
        demotions=stats.execution.demotions,
        admission=admission,
        restarts=restarts,
    )
