"""Whether server B is faster than server A: ratios with intervals from rounds in which both were measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean
from typing import Literal

import numpy as np
from msgspec import Struct

from trivium.bench.figures import NS_PER_MS, RunFigures
from trivium.bench.record import Comparison, Headline, RunPlan
from trivium.bench.samples import RequestSample

Verdict = Literal["faster", "slower", "no difference shown"]
DRAWS = 10_000  # of the bootstrap

HEADLINES: tuple[Headline, ...] = ("e2e", "ttft", "tpot", "throughput")
LATENCIES: dict[Headline, Callable[[RequestSample], float | None]] = {
    "e2e": lambda sample: sample.e2e_ns,
    "ttft": lambda sample: sample.ttft_ns,
    "tpot": lambda sample: sample.tpot_ns,
}


class Ratio(Struct, frozen=True, kw_only=True):
    """B over A. Of a latency, below 1 is faster; of throughput, above."""

    what: Headline
    a: float  # geometric mean over the rounds of the run's median, ms; of throughput, of tokens/s
    b: float
    ratio: float
    low: float
    high: float
    verdict: Verdict  # about B


class Compared(Struct, frozen=True, kw_only=True):
    ratios: list[Ratio]
    verdict: Verdict | None  # on the headline; None: there was nothing to compare
    rounds: int


class _Round(Struct, frozen=True):
    """What one round measured of each server."""

    a: float
    b: float


def compare(
    settings: Comparison,
    plans: Sequence[RunPlan],
    samples: Sequence[Sequence[RequestSample]],
    figures: Sequence[RunFigures],
) -> Compared:
    numbers = _rounds(plans)
    ratios = []
    for what in HEADLINES:
        values = [_value(what, of_run, of_figures) for of_run, of_figures in zip(samples, figures, strict=True)]
        rounds = [_Round(a, b) for one, other in numbers if (a := values[one]) and (b := values[other])]
        if numbers and len(rounds) == len(numbers):
            ratios.append(_ratio(what, rounds, settings))
    verdict = next((ratio.verdict for ratio in ratios if ratio.what == settings.headline), None)
    return Compared(ratios=ratios, verdict=verdict, rounds=len(numbers))


def _rounds(plans: Sequence[RunPlan]) -> list[tuple[int, int]]:
    """The numbers of the runs of A and of B, round by round."""
    found: dict[int, dict[str, int]] = {}
    for number, plan in enumerate(plans):
        if plan.round is not None and plan.side is not None:
            found.setdefault(plan.round, {})[plan.side] = number
    return [(sides["a"], sides["b"]) for _, sides in sorted(found.items()) if len(sides) == 2]


def _value(what: Headline, samples: Sequence[RequestSample], figures: RunFigures) -> float | None:
    """Of a run: the median of its completed requests, ms, or its tokens a second. None: there is nothing to take it from."""
    if what == "throughput":
        return figures.output_tokens_per_s
    times = [ns / NS_PER_MS for sample in samples if sample.complete and (ns := LATENCIES[what](sample)) is not None]
    return float(np.median(times)) if times else None


def _ratio(what: Headline, rounds: Sequence[_Round], settings: Comparison) -> Ratio:
    log_a = [math.log(one.a) for one in rounds]
    log_b = [math.log(one.b) for one in rounds]
    logs = [b - a for a, b in zip(log_a, log_b, strict=True)]
    low, high = bootstrap_interval(logs, settings.confidence, settings.seed)
    return Ratio(
        what=what,
        a=math.exp(fmean(log_a)),
        b=math.exp(fmean(log_b)),
        ratio=math.exp(fmean(logs)),
        low=low,
        high=high,
        verdict=verdict_of(low, high, settings.min_effect, lower_is_faster=what != "throughput"),
    )


def verdict_of(low: float, high: float, min_effect: float, *, lower_is_faster: bool) -> Verdict:
    """A difference is shown when the whole interval lies beyond the smallest effect that counts."""
    if high < 1 / (1 + min_effect):
        return "faster" if lower_is_faster else "slower"
    if low > 1 + min_effect:
        return "slower" if lower_is_faster else "faster"
    return "no difference shown"


def bootstrap_interval(logs: Sequence[float], confidence: float, seed: int) -> tuple[float, float]:
    """Of exp of the mean of `logs`, one for each round: rounds are drawn again, for they, and not the requests within them,
    are independent of each other.

    Rounds are few, and percentiles of a bootstrap over few are too narrow; they are taken further out, by as much as
    Student's quantile exceeds the normal one (the "expanded percentile" interval of Hesterberg).
    """
    # The legacy generator, because its stream is promised never to change: a bundle can be checked with any later numpy.
    rng = np.random.RandomState(seed % 2**32)
    means = np.asarray(logs)[rng.randint(0, len(logs), size=(DRAWS, len(logs)))].mean(axis=1)
    tail = expanded_tail((1 - confidence) / 2, len(logs))
    low, high = np.quantile(means, (tail, 1 - tail))
    return math.exp(low), math.exp(high)


def expanded_tail(tail: float, count: int) -> float:
    """The tail to cut from a bootstrap over `count` things so that its interval covers what was meant."""
    return NormalDist().cdf(-math.sqrt(count / (count - 1)) * student_quantile(1 - tail, count - 1))


def student_quantile(share: float, freedom: int) -> float:
    """Of Student's distribution, for a share above a half, by bisection."""
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < share else (low, middle)
    return high


def _student_cdf(value: float, freedom: int) -> float:
    """Simpson's rule over the density, in the angle that makes its range finite: t = sqrt(freedom) tan(angle)."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    angle = math.atan(value / math.sqrt(freedom))
    steps = 200
    heights = [math.cos(angle * step / steps) ** (freedom - 1) for step in range(steps + 1)]
    total = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + scale * total * angle / steps / 3
