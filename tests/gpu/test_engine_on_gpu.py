"""The engine on a GPU: captured steps, bfloat16 beside float32, requests that leave nothing behind."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from families import FAMILIES, TinyFamily

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.delta import FinishReason
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

# Log probabilities of bfloat16 against float32 on the same weights, whose spread is 11 to 13 in these models. Plain torch on
# a CPU is off by 0.02 to 0.04 on average and 0.07 to 0.22 at most. Of experts it chooses others here and there: 0.11 on average.
MOST_OFF, MEAN_OFF, SPARSE_MEAN_OFF = 0.5, 0.08, 0.3
EXACT = {"dtype": "float32", "kv_cache_dtype": "float32"}


def engine(directory: Path, **options: object) -> EngineCore:
    values = {"device": "cuda", "kv_cache_bytes": 64 << 20, "max_num_seqs": 16, **options}
    return EngineCore(EngineOptions(model=str(directory), **values))  # type: ignore[arg-type]


def prompt(length: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(3, 512) for _ in range(length))


def prompt_scores(core: EngineCore, tokens: tuple[int, ...]) -> list[float]:
    sampling = Sampling(seed=0, temperature=0.0, prompt_logprobs=1)
    core.add(Request("scored", tokens, sampling, Stopping(max_tokens=1), arrival=0.0))
    scores: list[TokenLogprobs] = []
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            scores.extend(delta.prompt_logprobs)
    assert len(scores) == len(tokens) - 1
    return [score.logprob for score in scores]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_bfloat16_scores_are_near_those_of_float32_token_by_token_and_at_once(
    family: TinyFamily, tmp_path: Path
) -> None:
    family.save(tmp_path).bfloat16().save_pretrained(tmp_path)  # weights that both dtypes hold exactly
    tokens = prompt(120, seed=int.from_bytes(random.randbytes(4)))
    exact = prompt_scores(engine(tmp_path, device="cpu", kernels="reference", **EXACT), tokens)
    is_sparse = "moe" in family.name or family.name == "mixtral"
    for chunk in (1, 400):
        rounded = prompt_scores(engine(tmp_path, dtype="bfloat16", max_chunk_tokens=chunk), tokens)
        off = [abs(mine - right) for mine, right in zip(rounded, exact, strict=True)]
        assert sum(off) / len(off) < (SPARSE_MEAN_OFF if is_sparse else MEAN_OFF)
        assert is_sparse or max(off) < MOST_OFF


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    next(family for family in FAMILIES if family.name == "qwen3").save(path)
    return path


def run(core: EngineCore, requests: list[Request], cancel_after: int = 0) -> dict[str, tuple[list[int], FinishReason]]:
    answers: dict[str, tuple[list[int], FinishReason]] = {}
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        core.add(request)
    steps = 0
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            tokens[delta.request_id].extend(delta.tokens)
            if delta.finish_reason is not None:
                answers[delta.request_id] = (tokens[delta.request_id], delta.finish_reason)
        core.assert_balanced()
        steps += 1
        if steps == cancel_after:
            for request in requests:
                core.cancel(request.id)
    return answers


def greedy(name: str, length: int, new: int = 20) -> Request:
    return Request(name, prompt(length, length), Sampling(seed=0, temperature=0.0), Stopping(new, new), arrival=0.0)


def test_captured_steps_give_the_tokens_of_the_reference_one_step_ahead(qwen3: Path) -> None:
    requests = [greedy(f"r{length}", length) for length in (1, 9, 33, 70, 130)]
    core = engine(qwen3, **EXACT)
    answers = run(core, requests)
    assert answers == run(engine(qwen3, kernels="reference", **EXACT), requests)
    assert core.execution_stats().replayed_steps > 10
    assert core.stats().planned_ahead > 10


def test_what_requests_ask_for_is_done_on_the_gpu_as_on_the_cpu(qwen3: Path) -> None:
    """Draws, filters, penalties, biases, bans: the same tokens for the same seed."""
    samplings = [
        Sampling(seed=1, temperature=1.0),
        Sampling(seed=2, temperature=0.8, top_k=40, top_p=0.9),
        Sampling(seed=3, temperature=1.3, min_p=0.02, typical_p=0.9),
        Sampling(seed=4, temperature=0.9, frequency_penalty=0.7, presence_penalty=0.3, repetition_penalty=1.2),
        Sampling(seed=5, temperature=1.0, logit_bias=((7, 4.0), (9, float("-inf")))),
        Sampling(seed=6, temperature=1.0, allowed_token_ids=tuple(range(5, 80))),
        Sampling(seed=7, temperature=1.0, bad_words=tuple((i, i + 1) for i in range(0, 500, 3))),
    ]
    requests = [
        Request(f"r{i}", prompt(20 + i, i), sampling, Stopping(24, 24), arrival=0.0)
        for i, sampling in enumerate(samplings)
    ]
    on_cpu = run(engine(qwen3, device="cpu", kernels="reference", **EXACT), requests)
    assert run(engine(qwen3, **EXACT), requests) == on_cpu


def test_requests_that_end_or_are_cancelled_leave_no_memory_taken(qwen3: Path) -> None:
    core = engine(qwen3)
    requests = [greedy(f"r{length}", length) for length in (3, 40, 200)]
    run(core, requests)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        run(core, requests)
        run(core, requests, cancel_after=4)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert core.stats().held_blocks == 0 and not core._rows.held
