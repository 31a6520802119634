"""Plans of faults: armed and disarmed by writing a file, counted over all lives of a process, and never armed by accident."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from trivium import faults
from trivium.faults import InjectedFault, Injector, fault_point


def write(path: Path, *plan: dict[str, Any], age: float = 0.0) -> None:
    """`age`: seconds since it was written."""
    path.write_text(json.dumps(plan))
    then = time.time() - age
    os.utime(path, (then, then))


def fails(injector: Injector, name: str, request_id: str = "") -> bool:
    try:
        injector.reach(name, request_id)
    except InjectedFault:
        return True
    return False


def test_without_a_plan_a_point_does_nothing() -> None:
    assert faults._INJECTOR is None, "tests run without TRIVIUM_FAULTS"
    assert fault_point("text.tokenize") is False


def test_a_fault_is_let_loose_as_often_as_it_says_also_by_the_next_process(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write(plan, {"id": "a", "point": "text.tokenize", "times": 3})
    first = Injector(plan)
    assert [fails(first, "text.tokenize") for _ in range(2)] == [True, True]
    next_life = Injector(plan)
    assert [fails(next_life, "text.tokenize") for _ in range(2)] == [True, False]
    assert not fails(first, "text.template")


def test_a_fault_that_lasts_ends_so_many_seconds_after_the_plan_was_written(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    injector = Injector(plan)
    write(plan, {"point": "text.tokenize", "seconds": 60})
    assert all(fails(injector, "text.tokenize") for _ in range(5))
    write(plan, {"point": "text.tokenize", "seconds": 60}, age=61)
    assert not fails(injector, "text.tokenize")


def test_an_emptied_or_missing_plan_disarms_and_a_new_one_arms(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    injector = Injector(plan)
    assert not fails(injector, "text.tokenize"), "there is no file yet"
    write(plan, {"id": "a", "point": "text.tokenize", "times": 9})
    assert fails(injector, "text.tokenize")
    write(plan)
    assert not fails(injector, "text.tokenize")
    write(plan, {"id": "b", "point": "text.tokenize"})
    assert fails(injector, "text.tokenize")
    plan.unlink()
    assert not fails(injector, "text.tokenize")


def test_a_fault_may_be_meant_for_one_request(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write(plan, {"point": "llm.lower", "request_id": "mine", "times": 9})
    injector = Injector(plan)
    assert fails(injector, "llm.lower", "mine") and not fails(injector, "llm.lower", "yours")


@pytest.mark.parametrize(("action", "kind"), [("raise", InjectedFault), ("memory", MemoryError), ("os_error", OSError)])
def test_each_action_fails_in_its_way(tmp_path: Path, action: str, kind: type[Exception]) -> None:
    plan = tmp_path / "plan.json"
    write(plan, {"point": "blobs.write", "action": action})
    with pytest.raises(kind):
        Injector(plan).reach("blobs.write", "")


def test_numbers_are_spoilt_by_the_caller(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write(plan, {"point": "runner.logits", "action": "nan"})
    injector = Injector(plan)
    assert [injector.reach("runner.logits", "") for _ in range(2)] == [True, False]


def test_a_plan_that_cannot_be_read_arms_nothing_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('[{"point": "text.tokenize", "action": "burn"}]')
    assert not fails(Injector(plan), "text.tokenize")
    assert "cannot be read as a plan of faults" in caplog.text
    write(plan, {"point": "text.tokenise"})
    assert not fails(Injector(plan), "text.tokenize")
    assert "'text.tokenise', which does not exist" in caplog.text
