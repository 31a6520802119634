"""Options + an encoder's facts + the platform's capabilities -> one frozen configuration. Pure, as `resolve` is."""

from __future__ import annotations

from msgspec import Struct

from trivium.config.options import EngineOptions
from trivium.config.resolve import activation_dtype
from trivium.config.settlement import Settlement
from trivium.types.facts import Adjustment, Capabilities, EncoderFacts

# Activations of so many tokens stay near the cores that compute them; more per step only makes others wait.
DEFAULT_BATCHED_TOKENS = 512
DEFAULT_BATCHED_TOKENS_DEDICATED = 16384  # where the memory is the engine's own, and so the device is


class EncoderConfig(Struct, frozen=True):
    options: EngineOptions
    device: str
    dtype: str
    max_model_len: int
    max_batched_tokens: int
    max_background_tokens: int
    num_threads: int
    adjustments: tuple[Adjustment, ...]


def resolve_encoder(options: EngineOptions, facts: EncoderFacts, capabilities: Capabilities) -> EncoderConfig:
    settlement = Settlement(options.accept_adjustments)
    dtype = activation_dtype(options, capabilities, settlement)
    if options.dtype == "auto" and dtype != facts.checkpoint_dtype:
        reason = f"{capabilities.name} computes best in it (the weights are {facts.checkpoint_dtype})"
        settlement.choose("dtype", dtype, reason)
    max_model_len = _length(options, facts, settlement)
    return EncoderConfig(
        options=options,
        device=capabilities.device,
        dtype=dtype,
        max_model_len=max_model_len,
        max_batched_tokens=_batched_tokens(options, capabilities, max_model_len, settlement),
        max_background_tokens=1 if options.max_background_tokens is None else options.max_background_tokens,
        num_threads=options.num_threads or capabilities.num_threads,
        adjustments=tuple(settlement.adjustments),
    )


def _length(options: EngineOptions, facts: EncoderFacts, settlement: Settlement) -> int:
    if options.max_model_len is None:
        if facts.trained_length < facts.max_position:
            reason = f"texts were cut to it in training; the model has {facts.max_position} positions"
            settlement.choose("max_model_len", facts.trained_length, reason)
        return facts.trained_length
    if options.max_model_len > facts.max_position:
        reason = (
            f"max_model_len {options.max_model_len} is more than the {facts.max_position} positions that the model has"
        )
        return settlement.instead("max_model_len", facts.max_position, reason)
    return options.max_model_len


def _batched_tokens(
    options: EngineOptions, capabilities: Capabilities, max_model_len: int, settlement: Settlement
) -> int:
    if options.max_num_batched_tokens is None:
        dedicated = capabilities.memory_is_dedicated
        return max(DEFAULT_BATCHED_TOKENS_DEDICATED if dedicated else DEFAULT_BATCHED_TOKENS, max_model_len)
    if options.max_num_batched_tokens < max_model_len:
        reason = (
            f"max_num_batched_tokens ({options.max_num_batched_tokens}) is less than max_model_len ({max_model_len}):"
            " an encoder computes a text whole, in one step"
        )
        return settlement.instead("max_num_batched_tokens", max_model_len, reason)
    return options.max_num_batched_tokens
