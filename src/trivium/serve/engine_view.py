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
from trivium.observe.recent import Percentiles
from trivium.schedule.snapshot import SequenceView, Snapshot
from trivium.serve.access.caller import asking
from trivium.serve.state import ServerState
from trivium.types.card import ModelCard, Task
from trivium.types.errors import EngineDeadError


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

    first_token: Percentiles | None
    inter_token: Percentiles | None


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
    in_flight: int  # HTTP requests for text
    restarts: int
    model: ModelView | None  # null while it is being loaded
    live: LiveView | None  # null while the engine does not answer
    latency: LatencyView


async def engine(state: ServerState, request: Request) -> Response:
    """Answers in every state of the engine, since that is what it is asked for."""
    stats = await _stats(state)
    view = EngineView(
        state=EngineState.DRAINING if state.draining else state.default.llm.state,
        time=time.monotonic(),
        in_flight=state.in_flight,
        restarts=state.default.llm.restarts,
        model=None if state.default.llm.state is EngineState.STARTING else _model(state.default.llm.card),
        live=None
        if stats is None or stats.snapshot is None
        else _live(stats, stats.snapshot, sees_others=asking().is_admin),
        latency=LatencyView(state.default.recent_waits.first_token(), state.default.recent_waits.inter_token()),
    )
    return Response(msgspec.json.encode(view), media_type="application/json", headers={"cache-control": "no-store"})


async def _stats(state: ServerState) -> Stats | None:
    if state.default.llm.state is not EngineState.READY:
        return None
    try:
        async with asyncio.timeout(state.limits.stats_seconds):
            return await state.default.llm.stats(with_snapshot=True)
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
