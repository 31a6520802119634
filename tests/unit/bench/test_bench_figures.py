"""Figures of hand-made samples, against answers worked out by hand."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from hand_made import record, sample

from trivium.bench.figures import MEANINGS, Slo, percentile, run_figures, spread
from trivium.bench.record import RunPlan
from trivium.bench.results import results_of
from trivium.bench.samples import Outcome
from trivium.bench.server_view import Metrics

TWO = (
    sample(0, scheduled=0, sent=2, text=(12, 22, 52), ended=60, prompt_tokens=100, output_tokens=4, cached_tokens=50),
    sample(1, scheduled=500, sent=501, text=(541,), ended=1000, prompt_tokens=60, output_tokens=1),
)


def test_times_and_tokens_of_two_answers() -> None:
    figures = run_figures(TWO, scheduled=True, slo=None)
    assert (figures.requests, figures.completed, figures.failures) == (2, 2, {})
    assert figures.duration_s == 1.0
    assert figures.offered_rate == 2.0  # one gap of 500 ms
    assert figures.completed_rate == 2.0
    assert figures.output_tokens_per_s == 5.0
    assert figures.total_tokens_per_s == 165.0
    assert (figures.prompt_tokens, figures.cached_tokens) == (160, 50)
    assert figures.ttft_ms is not None and (figures.ttft_ms.mean, figures.ttft_ms.max) == (25.0, 40.0)
    assert figures.tpot_ms is not None and (figures.tpot_ms.count, figures.tpot_ms.mean) == (1, pytest.approx(40 / 3))
    assert figures.itl_ms is not None and (figures.itl_ms.count, figures.itl_ms.p50, figures.itl_ms.max) == (2, 20, 30)
    assert figures.e2e_ms is not None and figures.e2e_ms.max == 499.0
    assert figures.lag_ms is not None and figures.lag_ms.max == 2.0
    assert figures.mean_in_flight == pytest.approx(0.058 + 0.499)
    assert figures.peak_in_flight == 1


def test_an_answer_without_counts_has_a_token_for_each_event() -> None:
    one = sample(text=(10, 20, 40), ended=50)
    assert one.num_output_tokens == 3
    assert one.tpot_ns == 15e6
    assert one.num_prompt_tokens == 10  # what was planned


def test_a_failed_request_stays_among_those_that_shares_are_taken_of() -> None:
    samples = (
        sample(0, text=(10,), ended=20),
        sample(1, ended=30, outcome=Outcome.HTTP_ERROR, status=429),
        sample(2, ended=40, outcome=Outcome.HTTP_ERROR, status=429),
        sample(3, text=(1,), ended=100, outcome=Outcome.CUT),
    )
    figures = run_figures(samples, scheduled=False, slo=Slo(e2e_ms=1000))
    assert figures.failures == {"cut": 1, "http 429": 2}
    assert (figures.requests, figures.completed, figures.failed) == (4, 1, 3)
    assert figures.within_slo == 0.25
    assert figures.goodput == 10.0  # one in 100 ms
    assert figures.duration_s == 0.1  # until the last failure ended
    assert figures.output_tokens == 1  # what was cut is not counted
    assert figures.ttft_ms is not None and figures.ttft_ms.count == 1


def test_a_run_in_which_everything_failed_has_no_times() -> None:
    figures = run_figures([sample(ended=5, outcome=Outcome.REFUSED, status=None)], scheduled=True, slo=None)
    assert (figures.ttft_ms, figures.e2e_ms, figures.completed_rate) == (None, None, 0)
    assert figures.lag_ms is not None


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(ttft_ms=10), True),
        (Slo(ttft_ms=9.9), False),
        (Slo(tpot_ms=40 / 3), True),
        (Slo(tpot_ms=13), False),
        (Slo(e2e_ms=58), True),
        (Slo(ttft_ms=10, tpot_ms=20, e2e_ms=57), False),
    ],
)
def test_an_slo_is_kept_at_its_limit_and_not_beyond(slo: Slo, kept: bool) -> None:
    assert slo.met_by(TWO[0]) is kept


def test_an_answer_of_one_token_has_no_time_between_tokens_to_keep() -> None:
    assert Slo(tpot_ms=0.001).met_by(TWO[1])


def test_percentiles_are_those_of_numpy() -> None:
    rng = random.Random(7)
    values = sorted(rng.expovariate(1) for _ in range(101))
    for share in (0.0, 0.5, 0.9, 0.95, 0.99, 1.0):
        assert percentile(values, share) == pytest.approx(np.percentile(values, share * 100), rel=1e-12)
    found = spread(value * 1e6 for value in values)
    assert found is not None and found.mean == pytest.approx(statistics.fmean(values))
    assert spread([]) is None


def test_requests_that_overlap_are_counted_in_flight_together() -> None:
    samples = [sample(i, sent=i * 10, text=(i * 10 + 1,), ended=i * 10 + 20) for i in range(4)]
    assert run_figures(samples, scheduled=False, slo=None).peak_in_flight == 2


def test_a_client_that_was_late_is_told() -> None:
    late = [sample(i, scheduled=i, sent=i + 50, text=(i + 60,), ended=i + 70) for i in range(3)]
    (warning,) = results_of(record(), late).warnings
    assert "did not keep up" in warning and "50.0 ms" in warning
    assert results_of(record(RunPlan(label="one", loop="closed", concurrency=1)), late).warnings == []


def test_failures_are_told_by_kind() -> None:
    failed = [sample(i, ended=1, outcome=Outcome.HTTP_ERROR, status=500 + i) for i in range(2)]
    (warning,) = results_of(record(), [*failed, sample(2, text=(1,), ended=2)]).warnings
    assert warning == "one: 2 of 3 requests failed (1 × http 500, 1 × http 501)"


def test_work_that_was_not_done_as_planned_is_told() -> None:
    samples = [
        sample(0, text=(1,), ended=2, prompt_tokens=20, output_tokens=5),
        sample(1, text=(1,), ended=2, prompt_tokens=30, output_tokens=4),
    ]
    shorter, prompts = results_of(record(full_answers=True), samples).warnings
    assert shorter.startswith("1 of 2 answers were shorter than planned")
    assert prompts == "prompts had 250% of the planned tokens, as the server counts them"
    assert results_of(record(), samples).warnings == [prompts]


def test_the_highest_rate_is_the_highest_that_kept_the_slo() -> None:
    runs = [RunPlan(label=f"{rate}", loop="open", rate=rate) for rate in (1.0, 4.0, 2.0)]
    samples = [sample(0, run=run, text=(ttft,), ended=ttft) for run, ttft in enumerate((10, 99, 20))]
    assert results_of(record(*runs, slo=Slo(ttft_ms=50)), samples).slo_rate == 2.0
    assert results_of(record(*runs, slo=Slo(ttft_ms=5)), samples).slo_rate is None


def page(count: int, seconds: float, tokens: int, token_seconds: float) -> str:
    """A server's metrics: two label sets, a comment, and what is not a number."""
    return (
        "# HELP vllm:time_to_first_token_seconds from x to y\n"
        f'vllm:time_to_first_token_seconds_count{{engine="0"}} {count}\n'
        'vllm:time_to_first_token_seconds_count{engine="1"} 1e0 1700000000\n'
        f'vllm:time_to_first_token_seconds_sum{{engine="0"}} {seconds}\n'
        f"vllm:inter_token_latency_seconds_count {tokens}\n"
        f"vllm:inter_token_latency_seconds_sum {token_seconds}\n"
        "vllm:e2e_request_latency_seconds_count 7\nother NaN\n"
    )


def test_the_servers_clock_stands_beside_the_clients() -> None:
    metrics = Metrics(page(3, 1.0, 10, 1.0), page(5, 1.04, 13, 1.03))
    found = results_of(record(), TWO, [metrics]).agreements
    assert [(one.what, one.client_ms, pytest.approx(one.server_ms)) for one in found] == [
        ("TTFT", 25.0, 20.0),  # two requests, 40 ms
        ("per token", pytest.approx(40 / 3), 10.0),  # three tokens after the first
    ]


def test_a_server_that_served_others_meanwhile_says_nothing_of_ours() -> None:
    metrics = Metrics(page(3, 1.0, 10, 1.0), page(6, 1.04, 14, 1.03))
    assert results_of(record(), TWO, [metrics]).agreements == []
    assert results_of(record(), TWO, [Metrics("", None)]).agreements == []


def test_the_docs_define_every_figure_in_the_words_of_the_report() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs" / "benchmarking.md").read_text()
    for name, meaning in MEANINGS.items():
        assert f"| {name} | {meaning} |" in text
