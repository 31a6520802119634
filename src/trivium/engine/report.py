"""From a plan to the report that people read, and, once the engine is up, what truly came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from trivium.config.resolve import EngineConfig
from trivium.engine.plan import Ground, StartPlan, asked, ops_of
from trivium.execute.graph import GraphMode
from trivium.execute.rows import Rows
from trivium.kernels.facts import planned_graph, slower_than_could_be
from trivium.kernels.ops import OP_NAMES, Ops
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.models.rope import rope_table_bytes
from trivium.models.spec import ModelSpec
from trivium.models.weight_memory import WeightMemory
from trivium.platform.contract import Compile
from trivium.platform.host_memory import resident_bytes
from trivium.platform.select import Selection
from trivium.types.kv import blocks_needed, row_bytes
from trivium.types.report import (
    ConsideredPlatform,
    Happened,
    KernelChoice,
    MemoryUse,
    ModelReport,
    PlatformReport,
    Report,
    Room,
)
from trivium.types.start_progress import StagePassed

DEFAULT_CONTEXT = 4096  # tokens, of the request for which room is told; or the model's, where that is less
SERVING_BYTES = 24 << 20  # scheduler, prefix tree, grammars, lines to clients, threads: 12 to 30 MiB once engines ran
WEIGHTS, CACHE, TABLES, STEP, PROCESS = "weights", "KV cache", "tables", "a step, at most", "process"


def report_plan(plan: StartPlan, context: int | None = None) -> Report:
    config = plan.config
    return Report(
        platform=describe_platform(plan.ground.selection),
        model=_describe_model(plan.spec, config),
        kernels=kernels_of(plan.ground.ops, ops_of(plan.spec)),
        graph=planned_graph(plan.ground.ops),
        compiles=_compiles(plan.ground),
        memory=tuple(_planned_memory(plan)),
        room=room_for(config, context),
        fallbacks=fallbacks_of(plan.ground, ops_of(plan.spec), plan.spec.quantization),
        adjustments=config.adjustments,
    )


def report_start(
    plan: StartPlan,
    config: EngineConfig,
    model: Decoder,
    kv: KVCache,
    rows: Rows,
    graph: GraphMode,
    start: tuple[StagePassed, ...],
    compiled_ahead: str,
) -> Report:
    """The plan's report with what was counted beside it. `config` is the final one."""
    planned = report_plan(plan)
    used = {WEIGHTS: model.weight_bytes, CACHE: kv.nbytes, TABLES: rows.nbytes + model.rope_bytes}
    return replace(
        planned,
        model=_describe_model(plan.spec, config),
        room=room_for(config, None),
        adjustments=config.adjustments,
        memory=tuple(replace(item, used_bytes=used.get(item.what)) for item in planned.memory),
        happened=Happened(
            kernels=kernels_of(model.ops, ops_of(model.spec)),
            graph=graph.state,
            packed=plan.packed.state,
            resident_bytes=resident_bytes(),
            resident_before_bytes=plan.ground.process_bytes,
            start=start,
            compiled_ahead=compiled_ahead,
        ),
    )


def describe_platform(selection: Selection) -> PlatformReport:
    platform = selection.platform
    capabilities, static = platform.capabilities(), platform.static()
    conformance, versions = static.conformance.value, static.versions.value
    return PlatformReport(
        name=platform.name,
        device=capabilities.device,
        product=capabilities.name,
        contract=versions.contract if versions is not None else 0,
        support=conformance.level if conformance is not None else "unknown",
        considered=tuple(
            ConsideredPlatform(one.name, one.detection.state, one.detection.reason) for one in selection.considered
        ),
    )


def _compiles(ground: Ground) -> str:
    if not ground.ops.compiles_at_first_use:
        return ""
    return compile_sentence(asked(ground.platform, "imported", ground.platform.imported).compile.value)


def compile_sentence(told: Compile | None) -> str:
    if told is None:
        return "kernels, at a first start; the platform does not say for how long"
    again = "the next start finds them made" if told.cached else "and at every start again"
    return f"kernels by {told.backend}, about {told.expected_seconds:g} s at a first start; {again}"


def fallbacks_of(ground: Ground, used: Collection[str], quantization: str | None) -> tuple[str, ...]:
    """An op that is wrong shows as one that the reference runs; the rest of what is not used is told beside."""
    others = [problem for problem in ground.problems if problem.partition(":")[0] not in OP_NAMES]
    return (*slower_than_could_be(ground.ops, used, quantization), *others)


def room_for(config: EngineConfig, context: int | None) -> Room:
    """`context`: tokens of one request; None: DEFAULT_CONTEXT, or the longest that is served."""
    kv = config.kv
    tokens = config.num_blocks // len(kv.groups) * kv.block_size
    length = min(DEFAULT_CONTEXT, config.max_model_len) if context is None else context
    if length > config.max_model_len:
        return Room(tokens, length, 0)
    need = blocks_needed(kv.groups, kv.block_size, length, config.max_chunk_tokens)
    return Room(tokens, length, min(config.options.max_num_seqs, config.num_blocks // need))


def _describe_model(spec: ModelSpec, config: EngineConfig) -> ModelReport:
    return ModelReport(
        path=config.options.model,
        family=spec.family,
        weights=spec.quantization or spec.dtype,
        dtype=config.dtype,
        kv_cache_dtype=config.kv.dtype,
        max_model_len=config.max_model_len,
        block_size=config.kv.block_size,
        num_blocks=config.num_blocks,
    )


def kernels_of(ops: Ops, used: Iterable[str]) -> tuple[KernelChoice, ...]:
    return tuple(KernelChoice(op, ops.providers[op].name, ops.providers[op].reason) for op in used)


def _planned_memory(plan: StartPlan) -> Iterable[MemoryUse]:
    config = plan.config
    yield weight_use(plan.weights)
    lazily = "" if plan.ground.capabilities.memory_is_dedicated else "; address space until it is written"
    cache = f"{config.num_blocks} blocks of {config.kv.bytes_per_block:,}{lazily}"
    yield MemoryUse(CACHE, config.num_blocks * config.kv.bytes_per_block, cache)
    rows = row_bytes(config.kv.groups, config.kv.block_size, config.options.max_num_seqs, config.max_model_len)
    ropes = {plan.spec.rope_of_layer(layer) for layer in range(plan.spec.num_layers)}
    tables = rows + sum(rope_table_bytes(rope, config.max_model_len) for rope in ropes)
    yield MemoryUse(TABLES, tables, f"tokens and blocks of {config.options.max_num_seqs} rows, rotary angles")
    yield MemoryUse(STEP, config.step_bytes, f"values of {config.max_batched_tokens} tokens, and logits")
    yield process_use(plan.ground, SERVING_BYTES)


def weight_use(weights: WeightMemory) -> MemoryUse:
    shares = f"{weights.own_bytes:,} in memory, {weights.mapped_bytes:,} mapped from files"
    return MemoryUse(WEIGHTS, weights.total_bytes, shares)


def process_use(ground: Ground, serving_bytes: int) -> MemoryUse:
    measured = (
        f"Python, torch and the kernels: {ground.process_bytes:,} as measured before the weights, the rest to serve"
    )
    return MemoryUse(PROCESS, ground.process_bytes + serving_bytes, measured)
