"""Steps replayed from a capture give the tokens that the engine gives otherwise.

The device is played by Triton's interpreter, and a capture by the call itself; on a GPU tests/gpu has the real ones.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from families import FAMILIES, TinyFamily

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
from triton_interpreter import INTERPRETS, set_up_interpreter

pytest.importorskip("triton")
from trivium.config.options import EngineOptions
from trivium.engine import plan as engine_plan
from trivium.engine.core import EngineCore
from trivium.execute.decode_graphs import captured_sizes
from trivium.kernels.cuda import gpu_ops
from trivium.types.request import Request, Sampling, Stopping

pytestmark = pytest.mark.skipif(not INTERPRETS, reason="tests/gpu runs them compiled")
set_up_interpreter()

PROMPTS = [[5, 9, 300], list(range(20, 39)), [7] * 16]
NEW_TOKENS = 3


# The last row that is left asks for nothing, so that some steps draw what was captured with them, and others do not.
SAMPLINGS = [
    Sampling(seed=0, temperature=0.9, top_p=0.9),
    Sampling(seed=0, temperature=0.0, logprobs=2),
    Sampling(seed=0, temperature=0.0),
]


def tokens_of(core: EngineCore) -> dict[str, list[int]]:
    for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        stopping = Stopping(max_tokens=NEW_TOKENS + index)
        core.add(Request(f"r{index}", tuple(prompt), sampling, stopping, arrival=0.0))
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            tokens.setdefault(delta.request_id, []).extend(delta.tokens)
        core.assert_balanced()
    return tokens


def small_engine(path: Path, **options: object) -> EngineCore:
    values = {"dtype": "float32", "kv_cache_bytes": 4 << 20, "max_num_seqs": 5, "max_model_len": 64, "device": "cpu"}
    return EngineCore(EngineOptions(model=str(path), **(values | options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gemma3", "mixtral"))]
)
@pytest.mark.parametrize(
    "overlap", [pytest.param(False, marks=pytest.mark.slow, id="step by step"), pytest.param(True, id="overlap")]
)
def test_captured_steps_give_the_same_tokens(
    name: str, overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family: TinyFamily = next(family for family in FAMILIES if family.name.startswith(name))
    family.save(tmp_path)
    expected = tokens_of(small_engine(tmp_path, kernels="reference"))
    triton = dataclasses.replace(
        gpu_ops("under test", num_processors=2), capture=lambda work: work, compiles_at_first_use=False
    )
    monkeypatch.setattr(engine_plan, "select_ops", lambda *_: triton)
    core = small_engine(tmp_path, overlap=overlap)
    assert "captured" in core.card.graph
    assert tokens_of(core) == expected
    assert core._runner.graph.replayed > 0
    assert (core.stats().planned_ahead > 0) == overlap
    assert core._runner.graph.eager["prompts in the step"] > 0


def test_any_number_of_rows_has_a_captured_size_close_above() -> None:
    for most in (1, 3, 17, 64, 256, 300, 1024):
        sizes = captured_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
    assert captured_sizes(5000)[-1] == 1024
