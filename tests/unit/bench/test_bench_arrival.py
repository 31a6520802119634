"""Arrivals: their mean rate, their spread, and that a seed repeats them."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest

from trivium.bench.arrival import ArrivalKind, arrival_times

COUNT = 20_000


def gaps(kind: ArrivalKind, rate: float, **shape: float) -> list[float]:
    """Seconds."""
    times = arrival_times(kind, rate, COUNT, random.Random(1), **shape)  # type: ignore[arg-type]
    assert times[0] == 0 and times == sorted(times)
    return [(after - before) / 1e9 for before, after in pairwise(times)]


def variation(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


@pytest.mark.parametrize("kind", ["poisson", "constant", "gamma", "burst"])
def test_the_mean_rate_is_the_one_that_was_asked_for(kind: ArrivalKind) -> None:
    assert statistics.fmean(gaps(kind, 50, burstiness=0.5, burst_size=4)) == pytest.approx(1 / 50, rel=0.001)


@pytest.mark.parametrize("kind", ["poisson", "constant", "gamma"])
def test_a_short_run_offers_exactly_its_rate(kind: ArrivalKind) -> None:
    for seed in range(5):
        times = arrival_times(kind, 4, 9, random.Random(seed), burstiness=0.3)
        assert times[-1] == pytest.approx(2e9)


@pytest.mark.parametrize("kind", ["poisson", "burst"])
def test_one_request_comes_at_once(kind: ArrivalKind) -> None:
    assert arrival_times(kind, 4, 1, random.Random(0), burst_size=8) == [0]


def test_poisson_gaps_vary_as_much_as_they_last() -> None:
    assert variation(gaps("poisson", 10)) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_one_over_the_square_of_the_variation(burstiness: float) -> None:
    assert variation(gaps("gamma", 10, burstiness=burstiness)) == pytest.approx(burstiness**-0.5, rel=0.08)


def test_constant_gaps_are_equal() -> None:
    assert variation(gaps("constant", 7)) < 1e-6


def test_bursts_come_all_at_once() -> None:
    times = arrival_times("burst", 100, 40, random.Random(3), burst_size=8)
    assert len({*times}) == 5
    assert all(len({*times[begin : begin + 8]}) == 1 for begin in range(0, 40, 8))


def test_the_same_seed_gives_the_same_arrivals_and_another_gives_others() -> None:
    first, again, other = (arrival_times("poisson", 5, 50, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other
