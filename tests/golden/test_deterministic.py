"""`--deterministic`: promised where the kernels keep it, refused where not, and kept.

A GPU is played by Triton's interpreter, and a capture by the call itself; tests/gpu has the real ones.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from families import FAMILIES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
from triton_interpreter import INTERPRETS, multiply_rows_alike, set_up_interpreter

pytest.importorskip("triton")
from trivium.config.options import EngineOptions
from trivium.engine import plan as engine_plan
from trivium.engine.core import EngineCore
from trivium.kernels.cuda_ordered import ordered_gpu_ops
from trivium.kernels.native import native_state
from trivium.types.errors import ConfigError
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs

if INTERPRETS:
    set_up_interpreter()

Answer = tuple[list[int], list[TokenLogprobs]]
DRAWN = Sampling(seed=3, temperature=0.9, top_p=0.95, logprobs=2)
MINE = tuple(range(40, 59))
OTHERS = [(5, 9, 300), (7,) * 16]


@pytest.fixture(scope="module", params=["qwen3", pytest.param("mixtral", marks=pytest.mark.slow)])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    next(family for family in FAMILIES if family.name == request.param).save(path)
    return path


def engine(directory: Path, **options: object) -> EngineCore:
    values = {"dtype": "float32", "kv_cache_bytes": 4 << 20, "max_num_seqs": 3, "max_model_len": 64, "device": "cpu"}
    return EngineCore(EngineOptions(model=str(directory), deterministic=True, **(values | options)))  # type: ignore[arg-type]


def answer(core: EngineCore, others: int = 0, preempted_after: int = 0) -> Answer:
    for index, prompt in enumerate(OTHERS[:others]):
        core.add(Request(f"other {index}", prompt, DRAWN, Stopping(max_tokens=1 + index), arrival=0.0))
    core.add(Request("mine", MINE, DRAWN, Stopping(max_tokens=3), arrival=1.0))
    tokens: list[int] = []
    scores: list[TokenLogprobs] = []
    steps = 0
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            if delta.request_id == "mine":
                tokens.extend(delta.tokens)
                scores.extend(delta.logprobs)
        core.assert_balanced()
        steps += 1
        if steps == preempted_after:
            core.preempt("mine")
    return tokens, scores


@pytest.mark.slow
@pytest.mark.skipif(not INTERPRETS, reason="tests/gpu runs them compiled")
def test_a_gpus_kernels_give_the_same_bits_alone_among_others_in_chunks_and_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_rows_alike(monkeypatch)
    ordered = dataclasses.replace(ordered_gpu_ops("under test"), capture=lambda work: work, compiles_at_first_use=False)
    monkeypatch.setattr(engine_plan, "select_ops", lambda *_: ordered)
    core = engine(directory)
    assert "slower for it" in "".join(line.reason for line in core.config.adjustments)
    expected = answer(core)
    assert len(expected[0]) == len(expected[1]) == 3
    assert answer(core, others=2) == expected, "among others, and its prompt from the cache"
    assert answer(engine(directory, enable_prefix_caching=False), preempted_after=2) == expected
    assert answer(engine(directory, max_chunk_tokens=7), others=2) == expected


@pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")
def test_native_kernels_promise_it_and_say_that_it_costs_nothing(directory: Path) -> None:
    core = engine(directory)
    said = [line.reason for line in core.config.adjustments if line.option == "deterministic"]
    assert len(said) == 1 and said[0].endswith("it costs nothing")
    assert answer(core, others=2) == answer(core)


def test_kernels_that_sum_by_the_batch_are_refused(directory: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"deterministic: sums depend on the batch in linear \(reference: asked for\)"
    ):
        engine(directory, kernels="reference")
