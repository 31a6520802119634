"""Options + model facts + platform capabilities -> one frozen configuration. Pure: the same input, the same answer.

A value that the user set is kept or refused, and changed only where that was accepted. What the engine chose is said aloud.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from trivium.config.options import EngineOptions
from trivium.config.settlement import Settlement
from trivium.types.errors import ConfigError
from trivium.types.facts import Adjustment, Capabilities, ModelFacts
from trivium.types.kv import BYTES_PER_ELEMENT, KVSpec, blocks_needed, group_layers, row_bytes

# The cache is address space until it is written, so a generous default costs nothing before it is used; a quarter of
# what is free leaves room for the rest of the machine.
DEFAULT_KV_SHARE = 0.25
DEFAULT_KV_BYTES_AT_MOST = 4 << 30

# What is kept for reuse is not to be the larger part of a small model's memory: beyond the size of the weights, and this
# at least, the cache grows only by what running sequences need.
LEAST_EASY_KV_BYTES = 128 << 20

# Enough to fill the arithmetic units with prompts; more only makes the steps, and the waiting for them, longer.
DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_BATCHED_TOKENS_DEDICATED = 8192  # where the memory is the engine's own, and so the device is
# There a small model computes 8,192 tokens in less time (20 ms for 0.6 billion weights, on an H200) than the host takes to
# launch all their kernels.
DEFAULT_BATCHED_TOKENS_SMALL_MODEL = 16384
SMALL_MODEL_BYTES = 4_000_000_000  # of its weights, as they are stored

# Of a device with its own memory, for what no formula tells: loaded kernels, work spaces, recorded steps.
DEVICE_MARGIN_BYTES = 1 << 30


class EngineConfig(Struct, frozen=True):
    options: EngineOptions
    device: str
    dtype: str
    max_model_len: int
    max_batched_tokens: int
    max_chunk_tokens: int
    max_background_tokens: int
    kv: KVSpec
    num_blocks: int
    easy_blocks: int | None  # beyond so many, cached blocks are evicted before unused memory is taken; None: all
    step_bytes: int  # that a step's values take at most, on the device
    num_threads: int
    steps_ahead: int  # launched before the step before them is taken in: 0 or 1
    adjustments: tuple[Adjustment, ...]


def resolve(
    options: EngineOptions,
    facts: ModelFacts,
    capabilities: Capabilities,
    kv_dtypes: Sequence[str],
    step_bytes: Callable[[int, int], int] | None = None,
) -> EngineConfig:
    """`kv_dtypes` are those that the kernels can keep keys and values in, the best first; `step_bytes` tells what the values of
    steps take at most, by the tokens of a step and those of the longest sequence (None: all activations of all tokens)."""
    settlement = Settlement(options.accept_adjustments)
    dtype = activation_dtype(options, capabilities, settlement)
    if options.dtype == "auto" and dtype != facts.checkpoint_dtype:
        settlement.choose(
            "dtype",
            dtype,
            f"{capabilities.name} computes best in it (the weights that are not quantized are {facts.checkpoint_dtype})",
        )
    kv = KVSpec(
        block_size=options.block_size,
        groups=group_layers(facts.windows),
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        dtype=_resolve_kv_dtype(options, facts, dtype, kv_dtypes, settlement),
    )
    batched_tokens = _batched_tokens(options, facts, capabilities, settlement)
    chunk = min(options.max_chunk_tokens or batched_tokens, batched_tokens)
    max_model_len = _wanted_length(options, facts, settlement)
    step_bytes = step_bytes or _all_activations(facts, dtype)
    largest_step = step_bytes(batched_tokens, max_model_len)
    num_blocks = _num_blocks(options, capabilities, kv, max_model_len, largest_step, chunk, settlement)
    easy_blocks = _easy_blocks(options, facts, capabilities, kv, num_blocks, settlement)
    max_model_len = _fit_length(options, kv, max_model_len, num_blocks, chunk, settlement)
    tokens_held = num_blocks // len(kv.groups) * kv.block_size
    _check_memory(options, facts, capabilities, kv, num_blocks, max_model_len)
    return EngineConfig(
        options=options,
        device=capabilities.device,
        dtype=dtype,
        max_model_len=max_model_len,
        max_batched_tokens=batched_tokens,
        max_chunk_tokens=chunk,
        max_background_tokens=_background_tokens(options, capabilities),
        kv=kv,
        num_blocks=num_blocks,
        easy_blocks=easy_blocks,
        step_bytes=step_bytes(min(batched_tokens, tokens_held), max_model_len),
        num_threads=options.num_threads or capabilities.num_threads,
        steps_ahead=int(capabilities.runs_by_itself if options.overlap is None else options.overlap),
        adjustments=tuple(settlement.adjustments),
    )


def _all_activations(facts: ModelFacts, dtype: str) -> Callable[[int, int], int]:
    of_token = facts.activations_per_token * BYTES_PER_ELEMENT[dtype]
    return lambda num_tokens, longest: num_tokens * of_token


def activation_dtype(options: EngineOptions, capabilities: Capabilities, settlement: Settlement) -> str:
    if options.dtype == "auto":
        return capabilities.dtypes[0]
    if options.dtype not in capabilities.dtypes:
        reason = f"dtype {options.dtype} does not run on {capabilities.name}: it has {', '.join(capabilities.dtypes)}"
        return settlement.instead("dtype", capabilities.dtypes[0], reason)
    return options.dtype


def _resolve_kv_dtype(
    options: EngineOptions, facts: ModelFacts, dtype: str, kv_dtypes: Sequence[str], settlement: Settlement
) -> str:
    if options.kv_cache_dtype != "auto":
        if options.kv_cache_dtype not in kv_dtypes:
            reason = (
                f"the kernels keep no {options.kv_cache_dtype} keys and values in blocks of {options.block_size} tokens and "
                f"heads of {facts.head_dim}: there is {', '.join(kv_dtypes)}"
            )
            return settlement.instead("kv_cache_dtype", kv_dtypes[0], reason)
        return options.kv_cache_dtype
    if kv_dtypes[0] != dtype:
        settlement.choose("kv_cache_dtype", kv_dtypes[0], f"the kernels read it fastest (activations are {dtype})")
    return kv_dtypes[0]


def default_batched_tokens(facts: ModelFacts, capabilities: Capabilities) -> int:
    if not capabilities.memory_is_dedicated:
        return DEFAULT_BATCHED_TOKENS
    is_small = 0 < facts.weight_bytes <= SMALL_MODEL_BYTES
    return DEFAULT_BATCHED_TOKENS_SMALL_MODEL if is_small else DEFAULT_BATCHED_TOKENS_DEDICATED


def _batched_tokens(
    options: EngineOptions, facts: ModelFacts, capabilities: Capabilities, settlement: Settlement
) -> int:
    if options.max_num_batched_tokens is None:
        return max(default_batched_tokens(facts, capabilities), options.max_num_seqs)
    if options.max_num_batched_tokens < options.max_num_seqs:
        reason = (
            f"max_num_batched_tokens ({options.max_num_batched_tokens}) is less than max_num_seqs "
            f"({options.max_num_seqs}): not every running sequence could get its token in a step"
        )
        return settlement.instead("max_num_batched_tokens", options.max_num_seqs, reason)
    return options.max_num_batched_tokens


def _background_tokens(options: EngineOptions, capabilities: Capabilities) -> int:
    """So many that those who wait hardly notice: each costs a CPU about as much as a token of theirs, while an
    accelerator reads its weights once for all tokens of a step."""
    if options.max_background_tokens is not None:
        return options.max_background_tokens
    return 32 if capabilities.runs_by_itself else 1


def _wanted_length(options: EngineOptions, facts: ModelFacts, settlement: Settlement) -> int:
    if options.max_model_len is None:
        return facts.max_position
    if options.max_model_len > facts.max_position:
        reason = f"max_model_len {options.max_model_len} is more than the {facts.max_position} positions the model was made for"
        return settlement.instead("max_model_len", facts.max_position, reason)
    return options.max_model_len


def _num_blocks(
    options: EngineOptions,
    capabilities: Capabilities,
    kv: KVSpec,
    max_model_len: int,
    step_bytes: int,
    chunk: int,
    settlement: Settlement,
) -> int:
    if options.kv_cache_bytes is not None:
        num_blocks = options.kv_cache_bytes // kv.bytes_per_block
        if num_blocks < len(kv.groups):
            raise ConfigError(
                f"kv_cache_bytes {options.kv_cache_bytes} holds {num_blocks} blocks of {kv.bytes_per_block} bytes, "
                f"and one sequence needs at least {len(kv.groups)}"
            )
        return num_blocks
    if capabilities.memory_is_dedicated:
        share, why = _dedicated_share(options, capabilities, kv, step_bytes)
    else:
        share = min(int(capabilities.available_bytes * DEFAULT_KV_SHARE), DEFAULT_KV_BYTES_AT_MOST)
        why = (
            f"at most {DEFAULT_KV_SHARE:.0%} of the {capabilities.available_bytes >> 20} MiB that are free and "
            f"{DEFAULT_KV_BYTES_AT_MOST >> 30} GiB"
        )
    useful = options.max_num_seqs * blocks_needed(kv.groups, kv.block_size, max_model_len, chunk)
    num_blocks = max(len(kv.groups), min(useful, share // kv.bytes_per_block))
    reason = f"{num_blocks} blocks of {kv.block_size} tokens: {why}"
    settlement.choose("kv_cache_bytes", num_blocks * kv.bytes_per_block, reason)
    return num_blocks


def _check_memory(
    options: EngineOptions,
    facts: ModelFacts,
    capabilities: Capabilities,
    kv: KVSpec,
    num_blocks: int,
    max_model_len: int,
) -> None:
    """Where memory is shared, nothing stops an engine that takes more than there is until the system ends it."""
    weights, cache = facts.own_weight_bytes, num_blocks * kv.bytes_per_block
    rows = row_bytes(kv.groups, kv.block_size, options.max_num_seqs, max_model_len)
    room = capabilities.memory_bytes
    if capabilities.memory_is_dedicated or weights + cache + rows <= room:
        return
    if weights + rows <= room:
        remedy = "lower kv_cache_bytes"
    elif weights <= room:
        remedy = "lower max_num_seqs or max_model_len"
    else:
        remedy = "take a smaller or more quantized model"
    raise ConfigError(
        f"the weights take {weights >> 20} MiB, the KV cache {cache >> 20} MiB and {options.max_num_seqs} rows "
        f"{rows >> 20} MiB, and the process may use {room >> 20} MiB: {remedy}"
    )


def _easy_blocks(
    options: EngineOptions,
    facts: ModelFacts,
    capabilities: Capabilities,
    kv: KVSpec,
    num_blocks: int,
    settlement: Settlement,
) -> int | None:
    """Memory that the user gave, or that is the engine's own, is there to be filled."""
    if options.kv_cache_bytes is not None or capabilities.memory_is_dedicated or not options.enable_prefix_caching:
        return None
    easy_bytes = max(facts.weight_bytes, LEAST_EASY_KV_BYTES)
    easy_blocks = easy_bytes // kv.bytes_per_block
    if easy_blocks >= num_blocks:
        return None
    reason = (
        f"{easy_bytes >> 20} MiB (the larger of the weights' {facts.weight_bytes >> 20} MiB and "
        f"{LEAST_EASY_KV_BYTES >> 20}); beyond, the cache grows only by what running sequences need; all of "
        "kv_cache_bytes where that is set"
    )
    settlement.choose("prefix cache", f"{easy_blocks * kv.block_size} tokens", reason)
    return easy_blocks


def _dedicated_share(
    options: EngineOptions, capabilities: Capabilities, kv: KVSpec, step_bytes: int
) -> tuple[int, str]:
    """(bytes for the cache, why): what is free now, less the share that stays free and what a step may need."""
    kept_free = int(capabilities.memory_bytes * (1 - options.gpu_memory_utilization))
    share = capabilities.available_bytes - kept_free - step_bytes - DEVICE_MARGIN_BYTES
    why = (
        f"{capabilities.available_bytes >> 20} of the {capabilities.memory_bytes >> 20} MiB of {capabilities.name} are "
        f"free; {kept_free >> 20} MiB stay so (gpu_memory_utilization {options.gpu_memory_utilization}), a step takes "
        f"up to {step_bytes >> 20} MiB, and {DEVICE_MARGIN_BYTES >> 20} MiB are kept for kernels and recorded steps"
    )
    if share < kv.bytes_per_block * len(kv.groups):
        raise ConfigError(f"no memory is left for a KV cache: {why}")
    return share, why


def _fit_length(
    options: EngineOptions, kv: KVSpec, wanted: int, num_blocks: int, chunk: int, settlement: Settlement
) -> int:
    """The longest sequence that the cache can hold: every admitted request must be able to run alone to its end."""
    need = blocks_needed(kv.groups, kv.block_size, wanted, chunk)
    if need <= num_blocks:
        return wanted
    low, high = 0, wanted  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        if blocks_needed(kv.groups, kv.block_size, middle, chunk) <= num_blocks:
            low = middle
        else:
            high = middle
    if low == 0:
        raise ConfigError(
            f"the KV cache has {num_blocks} blocks, and one token needs "
            f"{blocks_needed(kv.groups, kv.block_size, 1, chunk)}: raise kv_cache_bytes"
        )
    if options.max_model_len is not None:
        reason = (
            f"max_model_len {wanted} needs {need} KV blocks ({need * kv.bytes_per_block >> 20} MiB), and the cache has "
            f"{num_blocks} ({num_blocks * kv.bytes_per_block >> 20} MiB): lower max_model_len or raise kv_cache_bytes"
        )
        return settlement.instead("max_model_len", low, reason)
    settlement.choose(
        "max_model_len", low, f"the model allows {wanted}, the KV cache of {num_blocks} blocks holds less"
    )
    return low
