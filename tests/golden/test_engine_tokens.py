"""Greedy tokens equal to those of `transformers`, for every family, however the engine got there. Equal means equal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from device_under_test import DEVICE
from families import FAMILIES, TinyFamily, greedy_tokens

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.delta import FinishReason
from trivium.types.kv import blocks_needed
from trivium.types.request import Request, Sampling, Stopping

PROMPT_LENGTHS = (1, 2, 17, 64, 129, 300)
NEW_TOKENS = 64


class Golden:
    """Prompts of mixed lengths and the oracle's continuations, on one saved model."""

    def __init__(self, family: TinyFamily, directory: Path) -> None:
        self.directory = directory
        model = family.save(directory)
        draw = random.Random(family.name)
        self.prompts = [[draw.randrange(3, 512) for _ in range(length)] for length in PROMPT_LENGTHS]
        # transformers forbids end tokens before min_new_tokens; the engine is told to do the same.
        self.expected = [greedy_tokens(model, prompt, NEW_TOKENS) for prompt in self.prompts]


def each_in_one_process(families: list[TinyFamily]) -> list[ParameterSet]:
    """A family's oracle is asked once, also where tests are shared among processes."""
    return [pytest.param(family, id=family.name, marks=pytest.mark.xdist_group(family.name)) for family in families]


@pytest.fixture(scope="module", params=each_in_one_process(FAMILIES))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(request.param, tmp_path_factory.mktemp(request.param.name))


def engine(golden: Golden, **options: object) -> EngineCore:
    # A bfloat16 cache, the default, rounds more than these tiny models' likeliest tokens lie apart.
    exact = {"device": DEVICE, "dtype": "float32", "kv_cache_dtype": "float32"}
    values = {**exact, "kv_cache_bytes": 64 << 20, "max_num_seqs": 64, "block_size": 16, **options}
    return EngineCore(EngineOptions(model=str(golden.directory), **values))  # type: ignore[arg-type]


def submit(core: EngineCore, request_id: str, prompt: list[int], new: int = NEW_TOKENS) -> None:
    core.add(
        Request(
            id=request_id,
            prompt=tuple(prompt),
            sampling=Sampling(seed=0, temperature=0.0),
            stopping=Stopping(max_tokens=new, min_tokens=new, stop_token_ids=(2,)),
            arrival=time.monotonic(),
        )
    )


def run(core: EngineCore, after_step: Callable[[int], None] = lambda step: None) -> dict[str, list[int]]:
    """Every request's tokens, run to the end."""
    tokens: dict[str, list[int]] = {}
    step = 0
    while core.has_work:
        for delta in core.step():
            tokens.setdefault(delta.request_id, []).extend(delta.tokens)
            assert delta.finish_reason in (None, FinishReason.LENGTH), delta
        core.assert_balanced()
        step += 1
        after_step(step)
    assert core.stats().held_blocks == 0
    return tokens


def run_all(core: EngineCore, golden: Golden, name: str = "r") -> list[list[int]]:
    for i, prompt in enumerate(golden.prompts):
        submit(core, f"{name}{i}", prompt)
    tokens = run(core)
    return [tokens[f"{name}{i}"] for i in range(len(golden.prompts))]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_mixed_lengths_in_one_batch_for_any_prefill_chunk(golden: Golden, chunk: int) -> None:
    core = engine(golden, max_chunk_tokens=chunk)
    assert run_all(core, golden) == golden.expected


def test_whole_prompts_with_the_reference_kernels(golden: Golden) -> None:
    core = engine(golden, kernels="reference")
    assert run_all(core, golden) == golden.expected


def test_with_a_prefix_hit(golden: Golden) -> None:
    core = engine(golden)
    run_all(core, golden, "first")
    before = core.stats().cached_tokens
    assert run_all(core, golden, "second") == golden.expected
    # All whole blocks of each prompt but the last token's: 0 + 0 + 16 + 48 + 128 + 288.
    assert core.stats().cached_tokens - before == sum((length - 1) // 16 * 16 for length in PROMPT_LENGTHS)


def test_without_prefix_caching(golden: Golden) -> None:
    core = engine(golden, enable_prefix_caching=False)
    run_all(core, golden, "first")
    assert run_all(core, golden, "second") == golden.expected
    assert core.stats().cached_tokens == 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_after_forced_preemptions(golden: Golden, prefix_caching: bool) -> None:
    core = engine(golden, max_chunk_tokens=64, enable_prefix_caching=prefix_caching)
    for i, prompt in enumerate(golden.prompts):
        submit(core, f"r{i}", prompt)

    def preempt(step: int) -> None:
        if step in (2, 5, 20, 45):
            for i in range(len(golden.prompts)):
                core.preempt(f"r{i}")

    tokens = run(core, preempt)
    assert [tokens[f"r{i}"] for i in range(len(golden.prompts))] == golden.expected
    assert core.stats().preemptions >= len(golden.prompts)


def test_when_the_cache_is_too_small_for_all(golden: Golden) -> None:
    """Six sequences, room for little more than the longest: they preempt one another and still say the same."""
    kv = engine(golden).config.kv
    longest = max(PROMPT_LENGTHS) + NEW_TOKENS
    blocks = blocks_needed(kv.groups, kv.block_size, longest, max_chunk=64) + len(kv.groups)
    core = engine(golden, kv_cache_bytes=blocks * kv.bytes_per_block, max_chunk_tokens=64, max_model_len=longest)
    assert run_all(core, golden) == golden.expected
    assert core.stats().preemptions > 0


def test_alone_or_among_31_others(golden: Golden) -> None:
    core = engine(golden)
    draw = random.Random(1)
    for i in range(31):
        submit(core, f"other{i}", [draw.randrange(3, 512) for _ in range(draw.randrange(1, 60))], new=40)
    submit(core, "mine", golden.prompts[3])
    assert run(core)["mine"] == golden.expected[3]
