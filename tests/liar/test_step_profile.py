"""The first steps are traced with what the platform tells of, and nothing is promised that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from liar_engine import finish, options, submit

from trivium.engine.core import EngineCore
from trivium.engine.step_profile import FOLDER, activities_of
from trivium.platform.contract import Profiling, declared, unknown
from trivium.types.errors import ConfigError


def test_the_first_steps_are_traced_and_answers_stay_the_same(
    model: Path, right_tokens: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path / "home"))
    core = EngineCore(options(model, "cpu", kernels="reference", profile_steps=2))
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})
    (trace,) = (tmp_path / "home" / FOLDER).iterdir()
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::mm" in names or "aten::linear" in names or "aten::addmm" in names or "aten::matmul" in names


def test_nothing_is_traced_unasked(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path / "home"))
    core = EngineCore(options(model, "cpu", kernels="reference"))
    submit(core, "r", range(3, 21))
    finish(core)
    assert not (tmp_path / "home" / FOLDER).exists()


def test_a_platform_without_a_profiler_is_told_of() -> None:
    with pytest.raises(ConfigError, match="no activities \\(nobody asked\\): there is nothing to trace"):
        activities_of(unknown("nobody asked"))
    with pytest.raises(ConfigError, match="NPU, none of which torch has"):
        activities_of(declared(Profiling(("NPU",), "plog"), "this file"))
