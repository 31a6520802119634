"""Limits and features that a platform tells of are kept: defaults give way and say so, what a user asked for is refused."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

import pytest

from trivium.config.options import EngineOptions
from trivium.config.settlement import settle_with_platform, wish_of
from trivium.engine.platform_limits import decisions_of, within_graphs
from trivium.kernels.select import reference_ops
from trivium.platform.contract import FeaturePair, LoadFacts, PlatformLimits, declared, unknown
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities, ModelFacts

SLIDING = ModelFacts(windows=(512, None), num_kv_heads=1, head_dim=8, max_position=64, checkpoint_dtype="float32")
CHIP = Capabilities(
    platform="chip",
    device="cpu",
    name="Chip",
    dtypes=("float32",),
    memory_bytes=1 << 30,
    available_bytes=1 << 30,
    num_threads=1,
    features=(),
)


def settled(limits: PlatformLimits, *pairs: FeaturePair, **values: Any) -> tuple[EngineOptions, list[str]]:
    options = EngineOptions(model="m", **values)
    told = LoadFacts(limits=declared(limits, "its data sheet"), features=declared(pairs, "tests"))
    options, adjustments = settle_with_platform(options, decisions_of(told, wish_of(options), options, SLIDING, CHIP))
    return options, [f"{one.option}: {one.reason}" for one in adjustments]


def test_without_limits_nothing_changes() -> None:
    assert settled(PlatformLimits()) == (EngineOptions(model="m"), [])
    told = LoadFacts(limits=unknown("nobody asked"), features=unknown("nobody asked"))
    options = EngineOptions(model="m")
    assert not list(decisions_of(told, wish_of(options), options, SLIDING, CHIP))


def test_a_default_beyond_a_limit_gives_way_and_is_said() -> None:
    options, said = settled(PlatformLimits(max_sequences=4, max_batch_tokens=64))
    assert (options.max_num_seqs, options.max_num_batched_tokens) == (4, 64)
    assert said == [
        "max_num_seqs: chip runs 4 sequences at once at most (its data sheet) (not 256)",
        "max_num_batched_tokens: chip computes 64 tokens in a step at most (its data sheet) (not None)",
    ]


def test_a_limit_above_the_default_leaves_the_default() -> None:
    options, said = settled(PlatformLimits(max_sequences=1000, max_batch_tokens=65536))
    assert (options.max_num_seqs, options.max_num_batched_tokens, said) == (256, None, [])


@pytest.mark.parametrize(
    ("limits", "values", "said"),
    [
        (PlatformLimits(max_sequences=4), {"max_num_seqs": 8}, "max_num_seqs 8 cannot be kept"),
        (
            PlatformLimits(max_batch_tokens=64),
            {"max_num_batched_tokens": 128},
            "max_num_batched_tokens 128 cannot be kept",
        ),
        (PlatformLimits(max_sequences=0), {}, "its max_sequences is 0"),
    ],
)
def test_what_the_user_asked_for_is_refused_beyond_a_limit(
    limits: PlatformLimits, values: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        settled(limits, **values)


def test_features_that_do_not_go_together_are_refused_where_both_are_in_use() -> None:
    pair = FeaturePair("prefix caching", "sliding windows", "no", "blocks are given back")
    with pytest.raises(ConfigError, match="prefix caching and sliding windows do not go together on chip: blocks are"):
        settled(PlatformLimits(), pair)
    assert settled(PlatformLimits(), pair, enable_prefix_caching=False)[1] == []
    settled(PlatformLimits(), FeaturePair("prefix caching", "sliding windows", "yes", "a test"))


def test_no_more_graphs_are_captured_than_the_platform_holds() -> None:
    ops = with_fields(reference_ops(""), capture=lambda work: work)
    bounded = within_graphs(ops, PlatformLimits(max_graphs=2))
    assert bounded.capture is not None
    assert [bounded.capture(work) for work in ("a", "b")] == ["a", "b"]
    with pytest.raises(RuntimeError, match="the platform holds 2 graphs"):
        bounded.capture("c")
    assert within_graphs(ops, PlatformLimits()) is ops
