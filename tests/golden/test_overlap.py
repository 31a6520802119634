"""The same requests give the same answers, to the bit, whether or not a step is launched before the last is taken in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from device_under_test import DEVICE
from families import FAMILIES, TinyFamily
from torch import Tensor

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.execute.batch import Batch
from trivium.types.delta import FinishReason
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs

VOCABULARY = 512
STOPS = tuple(range(0, VOCABULARY, 16))  # so many that answers end at all lengths
SAMPLINGS = {
    "greedy": Sampling(seed=1, temperature=0.0),
    "drawn": Sampling(seed=2, temperature=1.5, top_k=200, top_p=0.98, logprobs=2),
    "penalized": Sampling(seed=3, temperature=0.8, frequency_penalty=0.5, repetition_penalty=1.3),
    "bad words": Sampling(seed=4, temperature=0.9, bad_words=tuple((i, i + 1) for i in range(0, 500, 3))),
    "told": Sampling(seed=5, temperature=0.0, logprobs=0, prompt_logprobs=1),
}
NOTHING_ALLOWED = Sampling(seed=6, allowed_token_ids=(7,), logit_bias=((7, float("-inf")),))


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None
    error: str | None = None


Answers = dict[tuple[str, int], Answer]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"overlap {name}")) for name in ("llama", "gemma3")],
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family: TinyFamily = next(family for family in FAMILIES if family.name == request.param)
    path = tmp_path_factory.mktemp(family.name)
    family.save(path)
    return path


def engine(directory: Path, overlap: bool, **options: object) -> EngineCore:
    values = {"dtype": "float32", "kv_cache_bytes": 16 << 20, "max_num_seqs": 16, "deterministic": True, **options}
    return EngineCore(EngineOptions(model=str(directory), device=DEVICE, overlap=overlap, **values))  # type: ignore[arg-type]


def requests(stop_token_ids: tuple[int, ...] = STOPS) -> list[Request]:
    draw = random.Random(0)
    shared = tuple(draw.randrange(3, VOCABULARY) for _ in range(40))
    asked = []
    for i, (name, sampling) in enumerate(sorted(SAMPLINGS.items()) * 3):
        own = tuple(draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(1, 60)))
        asked.append(
            Request(
                id=f"{name} {i}",
                prompt=shared[: draw.randrange(40)] + own,
                sampling=sampling,
                stopping=Stopping(max_tokens=draw.randrange(1, 40), min_tokens=2, stop_token_ids=stop_token_ids),
                arrival=float(i),
                n=draw.choice([1, 1, 3]),
            )
        )
    return asked


def run(
    core: EngineCore,
    asked: list[Request],
    after_step: Callable[[EngineCore, Answers], None] = lambda core, answers: None,
) -> Answers:
    answers: Answers = {(request.id, index): Answer() for request in asked for index in range(request.n)}
    for request in asked:
        core.add(request)
    while core.has_work:
        for delta in core.step():
            answer = answers[delta.request_id, delta.index]
            answer.tokens.extend(delta.tokens)
            answer.logprobs.extend(delta.logprobs)
            answer.prompt_logprobs.extend(delta.prompt_logprobs)
            answer.reason, answer.error = delta.finish_reason, delta.error
        core.assert_balanced()
        after_step(core, answers)
    assert core.stats().held_blocks == 0
    return answers


def test_answers_are_the_same(directory: Path) -> None:
    with_overlap = engine(directory, overlap=True)
    answers = run(with_overlap, requests())
    assert answers == run(engine(directory, overlap=False), requests())
    assert {answer.reason for answer in answers.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    stats = with_overlap.stats()
    assert stats.planned_ahead > stats.discarded > 0


def test_answers_are_the_same_when_blocks_are_so_few_that_sequences_give_way(directory: Path) -> None:
    plenty = engine(directory, overlap=False)
    kv = plenty.config.kv
    few = 12 * len(kv.groups) * kv.bytes_per_block
    with_overlap = engine(directory, overlap=True, kv_cache_bytes=few, max_model_len=128, max_chunk_tokens=24)
    answers = run(with_overlap, requests(stop_token_ids=()))
    assert answers == run(plenty, requests(stop_token_ids=()))
    assert with_overlap.stats().preemptions > 0


def test_others_hear_nothing_of_cancels_and_failures_in_flight(directory: Path) -> None:
    def cancel(core: EngineCore, answers: Answers) -> None:
        for (name, index), answer in answers.items():
            if name.startswith("greedy") and len(answer.tokens) >= 3:
                core.cancel(name, index)

    asked = requests()
    expected = run(engine(directory, overlap=False), asked)
    hopeless = [
        Request(f"hopeless {i}", (1,) * (20 * i), NOTHING_ALLOWED, Stopping(max_tokens=9), arrival=float(i))
        for i in (1, 2, 3)
    ]
    answers = run(engine(directory, overlap=True), hopeless + asked, cancel)
    for (name, index), answer in answers.items():
        if name.startswith("hopeless"):
            assert answer.error == "every token is banned by the request's own parameters"
        elif answer.reason is FinishReason.CANCELLED:
            assert answer.tokens == expected[name, index].tokens[: len(answer.tokens)]
        else:
            assert answer == expected[name, index]
    assert FinishReason.CANCELLED in {answer.reason for answer in answers.values()}


POISON = (511, 510, 511)  # a prompt with these tokens makes every step fail that computes them


@pytest.mark.parametrize("overlap", [False, True])
def test_who_makes_steps_fail_ends_alone_and_the_others_hear_what_they_would_have_heard(
    directory: Path, overlap: bool
) -> None:
    """As kernels do that raise: with some of the step done."""
    calm = requests()
    undisturbed = run(engine(directory, overlap=overlap), calm)
    core = engine(directory, overlap=overlap)
    forward = core._runner.graph.forward

    def fails_at_poison(batch: Batch, wanted: Tensor | None = None) -> Tensor:
        hidden = forward(batch, wanted)
        if ", 511, 510, 511" in str(batch.tokens.tolist()):
            raise RuntimeError("a kernel failed")
        return hidden

    core._runner.graph.forward = fails_at_poison  # type: ignore[method-assign]
    bad = [
        Request(
            f"bad {i}", (5, 6, *POISON, *range(7, 7 + 30 * i)), SAMPLINGS["drawn"], Stopping(8), arrival=i + 0.5, n=2
        )
        for i in range(2)
    ]
    answers = run(core, sorted([*calm, *bad], key=lambda request: request.arrival))
    assert {name: answers[name] for name in undisturbed} == undisturbed
    for name in answers.keys() - undisturbed.keys():
        assert answers[name].reason is FinishReason.ERROR and answers[name].tokens == []
        assert answers[name].error == "the engine failed while it computed this request (RuntimeError)"
    assert core.stats().failed_steps >= 5, "once for all together, and once for each of the four"


def test_a_device_that_always_fails_is_given_up(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.engine.step_failures.MAX_SECONDS", 0.0)
    core = engine(directory, overlap=False)

    def fails(batch: Batch, wanted: Tensor | None = None) -> Tensor:
        raise RuntimeError("the device is gone")

    core._runner.graph.forward = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the device is gone"):
        run(core, requests())
