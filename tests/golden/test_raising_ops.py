"""Ops that raise while they serve: they are left for the rung below, and no request notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES

import trivium.engine.descent
from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.engine.rungs import rung_below
from trivium.kernels.native import native_state, usable_instruction_sets
from trivium.kernels.ops import Ops
from trivium.types.errors import ConfigError
from trivium.types.request import Request, Sampling, Stopping

pytestmark = pytest.mark.skipif(
    "native" not in native_state() or len(usable_instruction_sets()) < 2, reason="there is no native rung below"
)


def make_core(model: Path, **values: object) -> EngineCore:
    options: dict[str, Any] = {"device": "cpu", "num_threads": 1, "max_num_seqs": 4, **values}
    return EngineCore(EngineOptions(model=str(model), **options))


def submit(core: EngineCore) -> None:
    for name, length in (("a", 1), ("b", 19), ("c", 40)):
        sampling = Sampling(seed=3, temperature=1.0, logprobs=1)
        core.add(Request(name, tuple(range(3, 3 + length)), sampling, Stopping(max_tokens=8), arrival=0.0))


def finish(core: EngineCore) -> tuple[dict[str, list[int]], set[str]]:
    """Tokens by request, and who failed."""
    tokens: dict[str, list[int]] = {}
    failed = set()
    while core.has_work:
        for delta in core.step():
            tokens.setdefault(delta.request_id, []).extend(delta.tokens)
            if delta.error is not None:
                failed.add(delta.request_id)
    core.assert_balanced()
    return tokens, failed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    FAMILIES[0].save(directory)
    return directory


@pytest.fixture(scope="module")
def right(model: Path) -> dict[str, list[int]]:
    core = make_core(model)
    submit(core)
    tokens, failed = finish(core)
    assert not failed
    return tokens


def raising(run: Callable[..., Any], *, after: int, times: int = 1_000_000) -> Callable[..., Any]:
    """The op, which raises so many times once it was called so often."""
    calls = iter(range(after + times))

    def run_or_raise(*arguments: Any) -> Any:
        if next(calls, -1) >= after:
            raise RuntimeError("no kernel image is available")
        return run(*arguments)

    return run_or_raise


def put(core: EngineCore, ops: Ops) -> None:
    core._runner._model.ops = core._runner._sampler.ops = ops


@pytest.mark.parametrize("op", ["linear", "sample", "logprobs"])
def test_a_native_op_that_raises_falls_to_the_next_instruction_set(
    op: str, model: Path, right: dict[str, list[int]]
) -> None:
    core = make_core(model)
    ops = core._runner.ops
    put(core, replace(ops, **{op: raising(getattr(ops, op), after=3)}))  # type: ignore[arg-type]
    submit(core)
    assert finish(core) == (right, set())
    stats = core.execution_stats()
    assert stats.demotions == {f"{op}: in service: it raised RuntimeError: no kernel image is available": 1}
    assert core._runner.ops.providers[op].name == f"native {usable_instruction_sets()[-2]}"
    assert core.stats().failed_steps == 0 and core.stats().failed == 0
    assert stats.replayed_steps > 0


def test_an_op_that_raises_in_a_step_without_a_graph_is_found_by_its_name(
    model: Path, right: dict[str, list[int]]
) -> None:
    core = make_core(model)
    ops = replace(core._runner.ops, record=None)
    core._runner.use(replace(ops, rotary=raising(ops.rotary, after=9)))
    submit(core)
    assert finish(core) == (right, set())
    assert [told.partition(":")[0] for told in core.execution_stats().demotions] == ["rotary"]


def test_a_replay_that_raises_is_run_op_by_op(
    model: Path, right: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(model)
    graph = core._runner.graph._graph
    assert graph is not None
    monkeypatch.setattr(graph, "run", raising(graph.run, after=2))
    submit(core)
    assert finish(core) == (right, set())
    told = "recorded steps: in service: it raised RuntimeError: no kernel image is available"
    assert core.execution_stats().demotions == {told: 1}
    assert core._runner.graph.state == "none: these kernels have no graph mode"


@pytest.mark.parametrize("rows", ["one", "several"])
def test_what_raises_once_is_not_left_and_nobody_fails(
    rows: str, model: Path, right: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(model, max_num_seqs=1) if rows == "one" else make_core(model)
    graph = core._runner.graph._graph
    assert graph is not None
    monkeypatch.setattr(graph, "run", raising(graph.run, after=4, times=1))
    submit(core)
    assert finish(core) == (right, set())
    assert core.execution_stats().demotions == {} and core.stats().failed_steps == 1
    assert "recorded" in core._runner.graph.state


def test_an_op_is_not_left_for_what_the_rung_below_cannot_do_either(
    model: Path, right: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(run: Callable[..., Any]) -> Callable[..., Any]:
        def linear(x: Any, *rest: Any) -> Any:
            if len(x) in (60, 19):  # all prompts together, and that of "b"
                raise ValueError("so many rows cannot be")
            return run(x, *rest)

        return linear

    def refusing_below(ops: Ops, num_threads: int) -> Ops | None:
        below = rung_below(ops, num_threads)
        return below and replace(below, linear=refusing(below.linear))

    monkeypatch.setattr(trivium.engine.descent, "rung_below", refusing_below)
    core = make_core(model, enable_prefix_caching=False)
    ops = replace(core._runner.ops, record=None)
    core._runner.use(replace(ops, linear=refusing(ops.linear)))
    submit(core)
    tokens, failed = finish(core)
    assert failed == {"b"} and core.execution_stats().demotions == {}
    assert (tokens["a"], tokens["c"]) == (right["a"], right["c"])


def test_where_strictness_forbids_the_rung_below_the_engine_ends_and_says_why(model: Path) -> None:
    best, lower = usable_instruction_sets()[-1], usable_instruction_sets()[-2]
    core = make_core(model, strict=best)
    ops = core._runner.ops
    put(core, replace(ops, sample=raising(ops.sample, after=0)))
    submit(core)
    with pytest.raises(ConfigError) as raised:
        finish(core)
    assert str(raised.value).startswith(f"strict {best}: ") and f"would run on native {lower}" in str(raised.value)
    assert "sample: in service: it raised RuntimeError: no kernel image is available" in str(raised.value)


def test_a_long_text_whose_vector_is_wanted_is_looked_at_too(model: Path) -> None:
    core = make_core(model, shadow_every=1)
    ops = core._runner.ops
    core._runner._model.ops = replace(ops, gated=lambda gate, up, activation: gate)
    pooling = Sampling(seed=0, pools=True)
    core.add(Request("p", tuple(range(3, 93)), pooling, Stopping(max_tokens=1), arrival=0.0))
    assert finish(core)[1] == set()
    assert [told.partition(":")[0] for told in core.execution_stats().demotions] == ["gated"]
