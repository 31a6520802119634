"""First uses at the start leave no trace but compiled kernels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from families import FAMILIES

from trivium.config.options import EngineOptions
from trivium.engine import core as engine_core
from trivium.engine import plan as engine_plan
from trivium.engine.core import EngineCore
from trivium.kernels.select import select_ops
from trivium.types.request import Request, Sampling, Stopping


def tokens_of(core: EngineCore) -> list[int]:
    core.add(Request("r", tuple(range(5, 60)), Sampling(seed=0, temperature=0.0), Stopping(max_tokens=9), arrival=0.0))
    tokens: list[int] = []
    while core.has_work:
        for delta in core.step():
            tokens += delta.tokens
    return tokens


@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_a_warmed_engine_answers_as_a_fresh_one(
    max_num_seqs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(family for family in FAMILIES if family.name == "gemma3").save(tmp_path)
    options = EngineOptions(
        model=str(tmp_path), dtype="float32", kv_cache_bytes=4 << 20, max_num_seqs=max_num_seqs, max_model_len=128
    )
    expected = tokens_of(EngineCore(options))
    launched: list[int] = []
    launch = engine_core.Runner.launch
    monkeypatch.setattr(
        engine_core.Runner, "launch", lambda runner, step: launched.append(step.num_tokens) or launch(runner, step)
    )
    ops = dataclasses.replace(select_ops("auto", "cpu", 1, "float32"), compiles_at_first_use=True)
    monkeypatch.setattr(engine_plan, "select_ops", lambda *_: ops)
    warmed = EngineCore(options)
    assert max(launched) > 100
    assert not warmed._rows.held
    assert warmed.stats().generated_tokens == warmed.execution_stats().replayed_steps == 0
    assert tokens_of(warmed) == expected
