"""Verdicts on known differences, with seeds."""

from __future__ import annotations

import random

import pytest
from hand_made import record, sample

from trivium.bench.compare import bootstrap_interval, expanded_tail, student_quantile, verdict_of
from trivium.bench.record import Comparison, RunPlan
from trivium.bench.results import results_of
from trivium.bench.samples import Outcome, RequestSample

ROUNDS = 6


def comparison(**changed: object) -> Comparison:
    return Comparison(**{"confidence": 0.95, "min_effect": 0.02, "headline": "e2e", "seed": 0, **changed})  # type: ignore[arg-type]


def plans() -> list[RunPlan]:
    return [
        RunPlan(label=f"{number} {side}", loop="closed", concurrency=1, side=side, round=number)  # type: ignore[arg-type]
        for number in range(ROUNDS)
        for side in ("ab" if number % 2 == 0 else "ba")
    ]


def measured(slower: float, drift: float = 0.0, seed: int = 0) -> list[RequestSample]:
    """B takes `slower` times as long as A; the machine gets slower by `drift` with each run."""
    rng = random.Random(seed)
    samples = []
    for run, plan in enumerate(plans()):
        factor = (slower if plan.side == "b" else 1.0) * (1 + drift * run)
        for index in range(20):
            times = [round(factor * rng.uniform(90, 110) * share) for share in (0.2, 0.6, 1.0)]
            samples.append(sample(index, run=run, text=(times[0], times[1]), ended=times[2], output_tokens=2))
    return samples


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "no difference shown"), (1.3, "slower"), (0.7, "faster")])
def test_a_difference_is_told_when_there_is_one(slower: float, verdict: str) -> None:
    compared = results_of(record(*plans(), comparison=comparison()), measured(slower)).compared
    assert compared is not None and compared.verdict == verdict
    assert compared.rounds == ROUNDS
    by_name = {ratio.what: ratio for ratio in compared.ratios}
    assert by_name["e2e"].ratio == pytest.approx(slower, rel=0.05)
    assert by_name["e2e"].low <= by_name["e2e"].ratio <= by_name["e2e"].high
    assert by_name["throughput"].ratio == pytest.approx(1 / slower, rel=0.1)
    assert {ratio.verdict for ratio in compared.ratios} == {verdict}


def test_a_machine_that_slows_down_hurts_both_sides_alike() -> None:
    compared = results_of(record(*plans(), comparison=comparison()), measured(1.0, drift=0.1)).compared
    assert compared is not None and compared.verdict == "no difference shown"


def test_a_difference_smaller_than_what_counts_is_not_told() -> None:
    compared = results_of(record(*plans(), comparison=comparison(min_effect=0.5)), measured(1.3)).compared
    assert compared is not None and compared.verdict == "no difference shown"


def test_a_side_that_never_answers_cannot_be_compared() -> None:
    dead = [
        sample(one.index, run=one.run, ended=1, outcome=Outcome.REFUSED) if plans()[one.run].side == "b" else one
        for one in measured(1.0)
    ]
    compared = results_of(record(*plans(), comparison=comparison()), dead).compared
    assert compared is not None and (compared.ratios, compared.verdict) == ([], None)


def test_the_verdict_is_on_the_headline() -> None:
    """Only the first token is late."""
    samples = [
        sample(0, run=run, text=(10 if plan.side == "a" else 30, 50), ended=100, output_tokens=2)
        for run, plan in enumerate(plans())
    ]
    for headline, verdict in (("ttft", "slower"), ("tpot", "faster"), ("e2e", "no difference shown")):
        compared = results_of(record(*plans(), comparison=comparison(headline=headline)), samples).compared
        assert compared is not None and compared.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.1, 1.2, "slower"), (0.8, 0.9, "faster"), (0.9, 1.2, "no difference shown")]
)
def test_the_whole_interval_must_be_beyond_one(low: float, high: float, verdict: str) -> None:
    assert verdict_of(low, high, 0.02, lower_is_faster=True) == verdict
    opposite = {"slower": "faster", "faster": "slower"}.get(verdict, verdict)
    assert verdict_of(low, high, 0.02, lower_is_faster=False) == opposite


def test_the_same_seed_gives_the_same_interval() -> None:
    logs = [random.Random(1).gauss(0, 1) for _ in range(3)] + [0.1, -0.2, 0.4]
    first, again, other = (bootstrap_interval(logs, 0.8, seed) for seed in (5, 5, 6))
    assert first == again != other


def test_students_quantiles_are_those_of_the_tables() -> None:
    for freedom, expected in ((1, 12.706), (5, 2.571), (30, 2.042)):
        assert student_quantile(0.975, freedom) == pytest.approx(expected, abs=1e-3)
    assert expanded_tail(0.025, 1000) == pytest.approx(0.025, abs=1e-3)
    assert expanded_tail(0.025, 5) < 0.003


@pytest.mark.parametrize("rounds", [6, 8, 16])
def test_intervals_of_equal_servers_hold_one_about_as_often_as_they_promise(rounds: int) -> None:
    rng = random.Random(rounds)
    held = 0
    for trial in range(200):
        low, high = bootstrap_interval([rng.gauss(0, 0.1) for _ in range(rounds)], 0.95, trial)
        held += low <= 1 <= high
    assert 0.89 <= held / 200 <= 0.99
