"""What a person sees while a run goes on and when it is over."""

from __future__ import annotations

import io

import pytest
from hand_made import record, sample

from trivium.bench import progress as progress_module
from trivium.bench.figures import Slo
from trivium.bench.plots import Scale, round_step
from trivium.bench.progress import Progress
from trivium.bench.record import Comparison, RunPlan
from trivium.bench.results import results_of
from trivium.bench.samples import Outcome
from trivium.bench.table import aligned, result_lines, significant


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_counts_what_was_sent_done_and_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "TERMINAL_SECONDS", 0.0)
    stream = Terminal()
    progress = Progress("4/s", 3, stream)
    for _ in range(3):
        progress.sent()
    progress.ended(sample(0, text=(40,), ended=50, output_tokens=1))
    progress.ended(sample(1, ended=50, outcome=Outcome.CUT))
    assert "4/s: 2/3 done, 1 in flight, 1 failed" in progress.line() and "TTFT p50 40 ms" in progress.line()
    assert stream.getvalue().count("\r") == 5 and "\n" not in stream.getvalue()
    progress.close()
    assert stream.getvalue().endswith("\n")


def test_a_log_is_not_flooded_by_progress() -> None:
    stream = io.StringIO()
    progress = Progress("run", 1000, stream)
    for _ in range(1000):
        progress.sent()
    progress.close()
    assert stream.getvalue().count("\n") == 1


def test_columns_of_a_table_are_aligned() -> None:
    assert list(aligned([("", "a", "bbb"), ("name", "10", "2")])) == ["       a  bbb", "name  10    2"]


def test_figures_have_three_digits() -> None:
    assert [significant(value) for value in (0.1234, 12.34, 1234.5)] == ["0.12", "12.3", "1234"]


def test_the_table_tells_the_verdict_and_both_sides() -> None:
    plans = [
        RunPlan(label=f"{n}{s}", loop="closed", concurrency=1, side=s, round=n)  # type: ignore[arg-type]
        for n in range(4)
        for s in "ab"
    ]
    samples = [sample(0, run=run, text=(5 + run % 2 * 10,), ended=10 + run % 2 * 10) for run in range(8)]
    settings = Comparison(confidence=0.95, min_effect=0.02, headline="e2e", seed=0)
    made = record(*plans, mode="compare", comparison=settings)
    lines = list(result_lines(made, results_of(made, samples)))
    assert "B is slower than A (4 rounds)" in lines
    assert any(line.startswith("E2E, ms") and "2.000" in line for line in lines)


def test_the_table_tells_what_a_search_found() -> None:
    made = record(RunPlan(label="2/s", loop="open", rate=2.0), mode="slo", slo=Slo(ttft_ms=50, attain=0.9))
    samples = [sample(0, text=(20,), ended=30)]
    found = "highest rate with 90% of requests within TTFT ≤ 50 ms: 2 requests/s"
    assert found in list(result_lines(made, results_of(made, samples)))
    late = [sample(0, text=(60,), ended=70)]
    assert any(
        line.startswith("no rate that was tried kept 90%") for line in result_lines(made, results_of(made, late))
    )


def test_axes_have_round_numbers() -> None:
    assert [round_step(rough) for rough in (0.3, 1.0, 4.0, 60)] == [0.5, 1, 5, 100]
    assert Scale.over([0, 9.7], zero=True).ticks() == [0, 2, 4, 6, 8]
    assert Scale.over([2, 900], may_log=True).ticks() == [2, 5, 10, 20, 50, 100, 200, 500]
    assert Scale(0, 2.1, whole=True).ticks() == [0, 1, 2]
