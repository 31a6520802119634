"""The ladder of kernels: which rung runs, what is said of the others, what is kept for the next start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from trivium.engine.kept_verdicts import KeptVerdicts
from trivium.engine.rungs import Rung, climb, refuse_below, refuse_by_batch
from trivium.engine.trial import WHOLE, TrialRequest, Verdict
from trivium.kernels.ops import Ops
from trivium.kernels.select import reference_ops
from trivium.types.decisions import Wish
from trivium.types.errors import ConfigError

REQUEST = TrialRequest(platform=None, wish=Wish(), device="cpu", dtype="float32", num_threads=1, used=("linear",))
RUNGS = [Rung("native best", REQUEST), Rung("native good", REQUEST)]
GOOD = (Verdict("linear", None), Verdict("embed", None))
BAD = (Verdict("linear", "it lies"), Verdict("embed", None))


def make(rung: Rung) -> Ops:
    return reference_ops(rung.name)


def test_the_best_rung_runs_where_it_is_right_and_no_other_is_tried() -> None:
    tried: list[str] = []

    def attempt(rung: Rung) -> Sequence[Verdict]:
        tried.append(rung.name)
        return GOOD

    standing = climb(RUNGS, attempt, make)
    assert (standing.ops.providers["linear"].reason, standing.problems, tried) == ("native best", (), ["native best"])


def test_a_rung_with_a_fault_is_left_for_the_one_below_and_it_is_said() -> None:
    standing = climb(RUNGS, lambda rung: BAD if rung is RUNGS[0] else GOOD, make)
    assert standing.ops.providers["linear"].reason == "native good"
    assert standing.problems == ("native best: not used, since linear: it lies",)


def test_where_all_rungs_have_a_fault_the_reference_takes_only_its_place() -> None:
    standing = climb(RUNGS, lambda rung: BAD, make)
    assert standing.ops.providers["linear"].reason == "it lies"
    assert standing.ops.providers["embed"].reason == "native best"
    assert standing.problems == ("linear: it lies",)


def test_where_no_trial_can_be_made_the_best_rung_runs_and_that_is_said() -> None:
    standing = climb(RUNGS, lambda rung: (Verdict(WHOLE, "no process could be started", lasts=False),), make)
    assert standing.ops.providers["linear"].reason == "native best"
    assert standing.problems == ("the trial: no process could be started; native best runs untried",)


def test_a_deterministic_engine_has_no_op_whose_sums_depend_on_the_batch() -> None:
    ops = replace(reference_ops("plain torch"), invariant=frozenset({"embed"}))
    refuse_by_batch(ops, ("embed",), ())
    with pytest.raises(ConfigError, match=r"batch in linear \(reference: plain torch\); it lied"):
        refuse_by_batch(ops, ("embed", "linear"), ("it lied",))


def test_a_verdict_is_found_once_for_each_build(tmp_path: Path) -> None:
    tries: list[TrialRequest] = []

    def attempt(request: TrialRequest) -> Sequence[Verdict]:
        tries.append(request)
        return BAD

    for build in ("one", "one", "two", "one"):
        assert KeptVerdicts(tmp_path, build).of(REQUEST, attempt) == BAD
    assert len(tries) == 2


def test_what_may_be_otherwise_next_time_is_not_kept(tmp_path: Path) -> None:
    slow = (Verdict("linear", "it hangs", lasts=False),)
    kept = KeptVerdicts(tmp_path, "build")
    assert kept.of(REQUEST, lambda _: slow) == slow
    assert kept.of(REQUEST, lambda _: GOOD) == GOOD


def test_a_damaged_verdict_is_found_anew(tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path, "build")
    kept.of(REQUEST, lambda _: GOOD)
    (file,) = (tmp_path / "ladder").iterdir()
    file.write_bytes(b"[{")
    assert kept.of(REQUEST, lambda _: BAD) == BAD


def test_a_root_that_cannot_be_written_keeps_nothing_and_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert KeptVerdicts(tmp_path / "file", "build").of(REQUEST, lambda _: GOOD) == GOOD


def test_strict_names_each_op_below_and_why() -> None:
    ops = reference_ops("the kernels cannot be loaded")
    refuse_below("reference", ops, ["linear", "embed"], ())
    refuse_below(None, ops, ["linear"], ())
    with pytest.raises(ConfigError, match=r"strict native: linear, embed would run on reference \(the kernels cannot"):
        refuse_below("native", ops, ["linear", "embed"], ())
    with pytest.raises(ConfigError, match="there is no rung 'fast' here; there are reference, native"):
        refuse_below("fast", ops, ["linear"], ())
