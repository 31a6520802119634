"""The default model: the same request gives the same answer whatever else runs, and however it was computed.

On a GPU a model of its shape, in the GPU's own dtype, with random weights: nothing needs to be fetched, and a quantized
model would run on the reference there.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from device_under_test import DEVICE

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.schedule.sequence import sequence_seed
from trivium.store import ModelStore
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs

pytestmark = pytest.mark.xdist_group("invariance")  # kernels are compiled once

GREEDY = Sampling(seed=1, temperature=0.0, logprobs=3)
DRAWN = Sampling(seed=1, temperature=0.9, top_p=0.95, top_k=50, logprobs=3)


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached: int = 0


SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 100000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


class Model:
    """Of which engines are made."""

    def __init__(self, directory: Path) -> None:
        if DEVICE == "cpu":
            self._values = {"model": str(ModelStore().resolve("smollm2"))}
        else:
            (directory / "config.json").write_text(json.dumps(SHAPE))
            self._values = {"model": str(directory), "load_format": "dummy", "max_num_seqs": 64}

    def engine(self, **options: object) -> EngineCore:
        values = {"device": DEVICE, "kv_cache_bytes": 256 << 20, "deterministic": True, **self._values, **options}
        return EngineCore(EngineOptions(**values))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def core(model: Model) -> EngineCore:
    return model.engine()


def prompt(length: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(1000, 40000) for _ in range(length))


def submit(
    core: EngineCore,
    request_id: str,
    tokens: tuple[int, ...],
    sampling: Sampling,
    new: int = 24,
    n: int = 1,
    salt: str = "",
) -> None:
    stopping = Stopping(max_tokens=new)
    core.add(Request(request_id, tokens, sampling, stopping, arrival=time.monotonic(), n=n, salt=salt))


def run(core: EngineCore) -> dict[tuple[str, int], Answer]:
    answers: dict[tuple[str, int], Answer] = {}
    while core.has_work:
        for delta in core.step():
            answer = answers.setdefault((delta.request_id, delta.index), Answer())
            answer.tokens.extend(delta.tokens)
            answer.logprobs.extend(delta.logprobs)
            answer.num_cached += delta.num_cached_tokens
    core.assert_balanced()
    assert core.stats().held_blocks == 0
    return answers


def alone(core: EngineCore, tokens: tuple[int, ...], sampling: Sampling, salt: str) -> Answer:
    submit(core, "alone", tokens, sampling, salt=salt)
    return run(core)["alone", 0]


def fresh_salts() -> Iterator[str]:
    """A tenant of its own for each run, so that nothing is found in the cache that was not meant to be."""
    count = 0
    while True:
        yield f"tenant {count}"
        count += 1


SALTS = fresh_salts()


def assert_same(answer: Answer, expected: Answer) -> None:
    """To the bit, tokens and log probabilities."""
    assert answer.tokens == expected.tokens
    assert answer.logprobs == expected.logprobs


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("length", [5, 130])
def test_alone_or_among_31_others(core: EngineCore, sampling: Sampling, length: int) -> None:
    mine = prompt(length, seed=length)
    expected = alone(core, mine, sampling, next(SALTS))
    for i in range(31):
        submit(core, f"other {i}", prompt(1 + 7 * i % 90, seed=1000 + i), DRAWN, new=8 + i % 17, salt=next(SALTS))
    submit(core, "mine", mine, sampling, salt=next(SALTS))
    assert_same(run(core)["mine", 0], expected)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_or_whole(core: EngineCore, model: Model, chunk: int) -> None:
    mine = prompt(100, seed=2)
    expected = alone(core, mine, DRAWN, next(SALTS))
    assert_same(alone(model.engine(max_chunk_tokens=chunk), mine, DRAWN, ""), expected)


def test_cached_or_not(core: EngineCore) -> None:
    mine, salt = prompt(100, seed=3), next(SALTS)
    first = alone(core, mine, DRAWN, salt)
    second = alone(core, mine, DRAWN, salt)
    assert (first.num_cached, second.num_cached) == (0, 96)
    assert_same(second, first)


def test_a_prefix_computed_by_a_neighbour_in_the_same_step(core: EngineCore) -> None:
    shared, salt = prompt(90, seed=8), next(SALTS)
    prompts = [shared + prompt(12, seed=100 + i) for i in range(6)]
    expected = [alone(core, mine, DRAWN, next(SALTS)) for mine in prompts]
    for i, mine in enumerate(prompts):
        submit(core, f"{i}", mine, DRAWN, salt=salt)
    answers = run(core)
    assert [answers[f"{i}", 0].num_cached for i in range(6)] == [0] + 5 * [80]
    for i in range(6):
        assert_same(answers[f"{i}", 0], expected[i])


def test_another_tenant_finds_nothing(core: EngineCore) -> None:
    mine = prompt(100, seed=4)
    alone(core, mine, GREEDY, next(SALTS))
    assert alone(core, mine, GREEDY, next(SALTS)).num_cached == 0


def test_preempted_or_not(core: EngineCore) -> None:
    mine, salt = prompt(40, seed=5), next(SALTS)
    expected = alone(core, mine, DRAWN, next(SALTS))
    submit(core, "mine", mine, DRAWN, salt=salt)
    answer = Answer()
    steps = 0
    while core.has_work:
        for delta in core.step():
            answer.tokens.extend(delta.tokens)
            answer.logprobs.extend(delta.logprobs)
        steps += 1
        if steps in (3, 10, 15):
            core.preempt("mine")
    assert_same(answer, expected)


def test_each_of_n_is_what_a_request_with_its_seed_would_be(core: EngineCore) -> None:
    """They fork from one prompt, share its blocks, and still draw as if alone."""
    mine = prompt(37, seed=6)
    submit(core, "forked", mine, DRAWN, n=4, salt=next(SALTS))
    answers = run(core)
    for index in range(4):
        sampling = Sampling(
            seed=sequence_seed(DRAWN.seed, index),
            temperature=DRAWN.temperature,
            top_p=DRAWN.top_p,
            top_k=DRAWN.top_k,
            logprobs=3,
        )
        assert_same(answers["forked", index], alone(core, mine, sampling, next(SALTS)))
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 4


@pytest.mark.skipif(DEVICE != "cpu", reason="of 8-bit products; test_engine_tokens.py has the reference on any device")
def test_the_reference_kernels_say_nearly_the_same(core: EngineCore, model: Model) -> None:
    """The native kernels round activations to 8 bits, keys and values to bfloat16; the reference rounds neither."""
    reference = model.engine(kernels="reference", deterministic=False)
    off = []
    for seed in (7, 8, 9, 10):
        answers = []
        for one in (core, reference):
            submit(one, "alone", prompt(30, seed=seed), GREEDY, salt=next(SALTS), new=1)
            answers.append(run(one)["alone", 0])
        native, exact = (answer.logprobs[0] for answer in answers)
        # Random tokens, so that several that follow are about as likely.
        place = native.top_tokens.index(exact.token)
        off.append(abs(native.top_logprobs[place] - exact.logprob))
    # 0.07 to 0.1 was seen.
    assert sum(off) / len(off) < 0.2
