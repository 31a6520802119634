"""Requests that come, are preempted and are cancelled at random, in a cache too small for all: who is served to the end is
told what it would have been told alone, and nothing is left of anybody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from device_under_test import DEVICE
from drawn_seed import drawn_seed
from families import FAMILIES

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.delta import FinishReason
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs

SAMPLINGS = (
    Sampling(seed=1, temperature=0.0, logprobs=1),
    Sampling(seed=2, temperature=1.2, top_k=100, top_p=0.95, logprobs=2),
    Sampling(seed=3, temperature=0.7, min_p=0.05, frequency_penalty=0.4),
)
LONGEST = 160  # tokens of a sequence
DTYPES = ["float32"] if DEVICE == "cpu" else ["float32", "bfloat16"]  # that kernels sum in one order in


@dataclass
class Life:
    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None


@pytest.fixture(scope="module", params=["qwen3", "gemma3", "qwen3-moe"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    next(family for family in FAMILIES if family.name == request.param).save(path)
    return path


def engine(directory: Path, **options: object) -> EngineCore:
    values = {"max_num_seqs": 8, "max_model_len": LONGEST, "max_chunk_tokens": 24, **options}
    return EngineCore(EngineOptions(model=str(directory), device=DEVICE, deterministic=True, **values))  # type: ignore[arg-type]


def drawn_request(draw: random.Random, name: str) -> Request:
    shared = tuple(range(30, 30 + draw.choice([0, 16, 37])))
    own = tuple(draw.randrange(3, 512) for _ in range(draw.randrange(1, 80)))
    stopping = Stopping(max_tokens=draw.randrange(1, 40))
    return Request(name, shared + own, draw.choice(SAMPLINGS), stopping, arrival=0.0)


def live(core: EngineCore, draw: random.Random, lives: dict[str, Life], num_requests: int) -> None:
    """Until all have ended. Each step may bring a request, or end or preempt one."""
    while len(lives) < num_requests or core.has_work:
        if len(lives) < num_requests and draw.random() < 0.5:
            name = f"r{len(lives)}"
            lives[name] = Life(drawn_request(draw, name))
            core.add(lives[name].request)
        running = [name for name, life in lives.items() if life.reason is None]
        if running and draw.random() < 0.1:
            core.preempt(draw.choice(running))
        if running and draw.random() < 0.03:
            core.cancel(draw.choice(running))
        step(core, lives)
    assert core.stats().held_blocks == 0


def step(core: EngineCore, lives: dict[str, Life]) -> None:
    for delta in core.step():
        life = lives[delta.request_id]
        assert delta.error is None
        life.tokens.extend(delta.tokens)
        life.logprobs.extend(delta.logprobs)
        life.reason = delta.finish_reason
    core.assert_balanced()


def alone(core: EngineCore, request: Request) -> Life:
    lives = {request.id: Life(request)}
    core.add(request)
    while core.has_work:
        step(core, lives)
    return lives[request.id]


@pytest.mark.parametrize("dtype", DTYPES)
def test_whoever_is_served_to_the_end_is_told_what_it_would_have_been_told_alone(directory: Path, dtype: str) -> None:
    draw = random.Random(drawn_seed(f"lives in {dtype}"))
    calm = engine(directory, kv_cache_bytes=16 << 20, dtype=dtype)
    kv = calm.config.kv
    few = 16 * len(kv.groups) * kv.bytes_per_block  # of which the longest sequence needs 10, and eight rows run
    core = engine(directory, kv_cache_bytes=few, dtype=dtype)
    lives: dict[str, Life] = {}
    live(core, draw, lives, num_requests=24)
    for life in lives.values():
        undisturbed = alone(calm, life.request)
        if life.reason is FinishReason.CANCELLED:
            assert undisturbed.tokens[: len(life.tokens)] == life.tokens
        else:
            assert life == undisturbed
