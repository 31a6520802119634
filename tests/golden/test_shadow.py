"""Steps that are computed on the rung below too: right kernels are never accused, wrong ones are left in service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from families import FAMILIES, TinyFamily

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.kernels.native import native_state, usable_instruction_sets
from trivium.types.request import Request, Sampling, Stopping

pytestmark = pytest.mark.skipif(
    "native" not in native_state() or len(usable_instruction_sets()) < 2, reason="there is no native rung below"
)


def make_core(model: Path, **values: object) -> EngineCore:
    return EngineCore(EngineOptions(model=str(model), device="cpu", num_threads=1, max_num_seqs=4, **values))  # type: ignore[arg-type]


def submit(core: EngineCore, num_tokens: int) -> None:
    for name, length in (("a", 1), ("b", 19), ("c", 40)):
        sampling = Sampling(seed=3, temperature=1.0)
        core.add(Request(name, tuple(range(3, 3 + length)), sampling, Stopping(max_tokens=num_tokens), arrival=0.0))


def finish(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            tokens.setdefault(delta.request_id, []).extend(delta.tokens)
    core.assert_balanced()
    return tokens


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_right_kernels_are_not_accused_and_answers_stay_the_same(
    family: TinyFamily, kv_cache_dtype: str, tmp_path: Path
) -> None:
    family.save(tmp_path)
    answers = []
    for every in (0, 1):
        core = make_core(tmp_path, shadow_every=every, kv_cache_dtype=kv_cache_dtype)
        submit(core, 6)
        answers.append(finish(core))
        assert core.execution_stats().demotions == {}
    assert answers[0] == answers[1]


@pytest.mark.parametrize("lie", ["wrong", "nan"])
def test_a_native_op_that_lies_in_service_falls_to_the_next_instruction_set(lie: str, tmp_path: Path) -> None:
    FAMILIES[0].save(tmp_path)
    core = make_core(tmp_path)
    submit(core, 12)
    right = finish(core)

    core = make_core(tmp_path, shadow_every=1)
    ops = core._runner.ops

    def lying(x, weight, eps):  # type: ignore[no-untyped-def]
        return ops.rms_norm(x, weight, eps) * (1.1 if lie == "wrong" else float("nan"))

    submit(core, 12)
    begun = [delta for _ in range(3) for delta in core.step()]
    core._runner._model.ops = replace(ops, rms_norm=lying)
    tokens = finish(core)
    for name, wanted in right.items():
        assert [t for delta in begun if delta.request_id == name for t in delta.tokens] + tokens[name] == wanted
    (told,) = core.execution_stats().demotions
    assert told.startswith("rms_norm: in service: ")
    assert core._runner.ops.providers["rms_norm"].name == f"native {usable_instruction_sets()[-2]}"
    assert core.execution_stats().replayed_steps > 0 and "recorded" in core._runner.graph.state


def test_a_recorded_step_that_lies_is_run_op_by_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES[0].save(tmp_path)
    core = make_core(tmp_path)
    submit(core, 12)
    right = finish(core)

    core = make_core(tmp_path, shadow_every=1)
    graph = core._runner.graph._graph
    assert graph is not None
    run = graph.run
    monkeypatch.setattr(graph, "run", lambda *arguments: run(*arguments).flip(-1))
    submit(core, 12)
    assert finish(core) == right
    (told,) = core.execution_stats().demotions
    assert told.startswith("recorded steps: in service: ")
    assert core._runner.graph.state == "none: these kernels have no graph mode"


def test_steps_are_looked_at_as_often_as_was_asked(tmp_path: Path) -> None:
    """A kernel that lies is caught with the first step that is looked at, and not before."""
    FAMILIES[0].save(tmp_path)
    core = make_core(tmp_path, shadow_every=5)
    ops = core._runner.ops
    core._runner._model.ops = replace(ops, gated=lambda gate, up, activation: gate)
    submit(core, 12)
    for _ in range(4):
        core.step()
    assert core.execution_stats().demotions == {}
    core.step()
    assert [told.partition(":")[0] for told in core.execution_stats().demotions] == ["gated"]
