"""GET /v1/engine: where the engine stands, as the web page shows it. It tells numbers, never what anybody asked."""

from __future__ import annotations

import asyncio
import time

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.cache.outline import Chain
from trivium.engine.client import EngineState
from trivium.engine.messages import Stats
from trivium.observe.recent_waits import Percentiles
from trivium.schedule.snapshot import SequenceView, Snapshot
from trivium.serve.access.caller import asking
from trivium.serve.models.asked import offer_for
from trivium.serve.models.served import ServedModel
from trivium.serve.state import ServerState
from trivium.types.card import ModelCard, Task
from trivium.types.errors import EngineDeadError

UNLOADED = "unloaded"  # the state of a model that is loaded when it is asked for


class ModelView(Struct, frozen=True):
    name: str
    family: str
    task: Task
    dtype: str
    max_model_len: int
    kv_cache_dtype: str
    block_size: int  # tokens
    num_blocks: int
    kernels: tuple[str, ...]
    graph: str


class BlocksView(Struct, frozen=True):
    free: int
    held: int  # by sequences
    cached: int  # by nobody, kept for reuse


class TotalsView(Struct, frozen=True):
    """Since the engine's process began."""

    prompt_tokens: int
    cached_tokens: int  # of these, found in the prefix tree
    generated_tokens: int
    steps: int
    step_seconds: float
    preemptions: int
    evicted_blocks: int
    completed: int  # sequences
    cancelled: int
    failed: int


class LatencyView(Struct, frozen=True):
    """Over the last minute; null where there was nothing to measure."""

    first_token: Percentiles | None = None
    inter_token: Percentiles | None = None


class LiveView(Struct, frozen=True):
    running: int  # sequences
    waiting: int
    kv: BlocksView
    totals: TotalsView
    sequences: tuple[SequenceView, ...]
    prefixes: tuple[Chain, ...]
    prefixes_are_whole: bool


class EngineView(Struct, frozen=True):
    state: str
    time: float  # seconds of a clock that only goes forward: rates are differences over its differences
    in_flight: int  # HTTP requests for text, of all models
    restarts: int = 0
    model: ModelView | None = None  # null while it is not loaded
    live: LiveView | None = None  # null while the engine does not answer
    latency: LatencyView = LatencyView()


async def engine(state: ServerState, request: Request) -> Response:
    """?model=NAME. Answers in every state of the engine, since that is what it is asked for."""
    offer = await offer_for(state, request, request.query_params.get("model"))
    berth = state.models.berth_of(offer.name)
    view = EngineView(UNLOADED, time.monotonic(), state.in_flight) if berth is None else await _view(state, berth.model)
    return Response(msgspec.json.encode(view), media_type="application/json", headers={"cache-control": "no-store"})


async def _view(state: ServerState, model: ServedModel) -> EngineView:
    stats = await _stats(model, state.limits.stats_seconds)
    has_card = model.llm.state not in (EngineState.STARTING, EngineState.DEAD)
    return EngineView(
        state=EngineState.DRAINING if state.draining else model.llm.state,
        time=time.monotonic(),
        in_flight=state.in_flight,
        restarts=model.llm.restarts,
        model=_model(model.card) if has_card else None,
        live=None
        if stats is None or stats.snapshot is None
        else _live(stats, stats.snapshot, sees_others=asking().is_admin),
        latency=LatencyView(model.recent_waits.first_token(), model.recent_waits.inter_token()),
    )


async def _stats(model: ServedModel, patience: float) -> Stats | None:
    if model.llm.state is not EngineState.READY:
        return None
    try:
        async with asyncio.timeout(patience):
            return await model.llm.stats(with_snapshot=True)
    except (EngineDeadError, TimeoutError):
        return None


def _model(card: ModelCard) -> ModelView:
    return ModelView(
        name=card.name,
        family=card.family,
        task=card.task,
        dtype=card.dtype,
        max_model_len=card.max_model_len,
        kv_cache_dtype=card.kv_cache_dtype,
        block_size=card.block_size,
        num_blocks=card.num_blocks,
        kernels=card.kernels,
        graph=card.graph,
    )


def _live(stats: Stats, snapshot: Snapshot, *, sees_others: bool) -> LiveView:
    """The sequences and prefixes of others are told to admins only."""
    scheduler = stats.scheduler
    return LiveView(
        running=scheduler.running,
        waiting=scheduler.waiting,
        kv=BlocksView(scheduler.free_blocks, scheduler.held_blocks, scheduler.cached_blocks),
        totals=TotalsView(
            prompt_tokens=scheduler.prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            generated_tokens=scheduler.generated_tokens,
            steps=stats.num_steps,
            step_seconds=stats.step_seconds,
            preemptions=scheduler.preemptions,
            evicted_blocks=scheduler.evicted_blocks,
            completed=scheduler.ended_by_stop + scheduler.ended_by_length,
            cancelled=scheduler.cancelled,
            failed=scheduler.failed,
        ),
        sequences=snapshot.sequences if sees_others else (),
        prefixes=snapshot.prefixes.chains if sees_others else (),
        prefixes_are_whole=snapshot.prefixes.is_whole and sees_others,
    )
