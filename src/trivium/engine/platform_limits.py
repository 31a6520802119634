"""What a platform's limits and its matrix of features make of a start: decisions about options, and bounds of the ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from trivium.config.options import EngineOptions
from trivium.config.resolve import default_batched_tokens
from trivium.kernels.ops import Ops
from trivium.platform.contract import LoadFacts, PlatformLimits
from trivium.types.decisions import Adjust, Decision, Refuse, Wish
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities, ModelFacts


def decisions_of(
    told: LoadFacts, wish: Wish, options: EngineOptions, facts: ModelFacts, capabilities: Capabilities
) -> Iterator[Decision]:
    """What the platform would say itself if it were asked of each number, and of each pair of features in use."""
    limits = told.limits.value or PlatformLimits()
    _check_possible(limits, capabilities.platform)
    sequences, tokens = limits.max_sequences, limits.max_batch_tokens
    if sequences is not None and wish.max_num_seqs > sequences:
        reason = f"{capabilities.platform} runs {sequences} sequences at once at most ({told.limits.reason})"
        yield Adjust("max_num_seqs", wish.max_num_seqs, sequences, reason)
    wanted = wish.max_num_batched_tokens or default_batched_tokens(facts, capabilities)
    if tokens is not None and wanted > tokens:
        reason = f"{capabilities.platform} computes {tokens} tokens in a step at most ({told.limits.reason})"
        yield Adjust("max_num_batched_tokens", wish.max_num_batched_tokens, tokens, reason)
    in_use = features_in_use(options, facts)
    for pair in told.features.value or ():
        if pair.together == "no" and {pair.first, pair.second} <= in_use:
            reason = f"{pair.first} and {pair.second} do not go together on {capabilities.platform}"
            yield Refuse("features", reason, f"{pair.shown_by}; do without one of them")


def features_in_use(options: EngineOptions, facts: ModelFacts) -> frozenset[str]:
    """By the names under which platforms tell of them."""
    used = {
        "prefix caching": options.enable_prefix_caching,
        "sliding windows": any(window is not None for window in facts.windows),
        "int8 cache": options.kv_cache_dtype == "int8",
        "planning ahead": bool(options.overlap),
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def within_graphs(ops: Ops, limits: PlatformLimits | None) -> Ops:
    """Ops that capture no more graphs than the platform can hold."""
    if limits is None or limits.max_graphs is None or ops.capture is None:
        return ops
    return replace(ops, capture=_Limited(ops.capture, limits.max_graphs))


class _Limited:
    def __init__(self, capture: Callable[[Any], Any], most: int) -> None:
        self._capture = capture
        self._most = self._left = most

    def __call__(self, work: Any) -> Any:
        if self._left == 0:
            raise RuntimeError(f"the platform holds {self._most} graphs")
        self._left -= 1
        return self._capture(work)


def _check_possible(limits: PlatformLimits, platform: str) -> None:
    for name in ("max_sequences", "max_batch_tokens"):
        if (most := getattr(limits, name)) is not None and most < 1:
            raise ConfigError(f"the platform {platform!r} says that its {name} is {most}")
