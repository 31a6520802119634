"""Every figure that is printed, each with one meaning: from when to when, on which clock, over which requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from trivium.bench.samples import RequestSample

NS_PER_MS = 1e6
NS_PER_S = 1e9
# A client kept up with its schedule if 99 of 100 requests were late by no more than this, or than this share of the mean gap.
KEPT_UP_MS = 10.0
KEPT_UP_SHARE = 0.05

# What the report, the table and the docs say of each figure.
MEANINGS: dict[str, str] = {
    "requests": "all requests of the run, whatever became of them",
    "completed": "requests whose whole answer came; all others are failures, counted by kind",
    "duration": "from the first scheduled sending to the last end of any request",
    "offered rate": "of an open loop: the schedule's requests less one, over the time from its first to its last",
    "completed rate": "completed requests over the duration",
    "output tokens/s": "tokens of completed answers, as the server counted them, over the duration",
    "total tokens/s": "the same and the tokens of their prompts, cached or not",
    "cached": "share of the tokens of completed requests' prompts that the server said it had in its cache",
    "TTFT": "from a request's sending (a new connection included) to its first event with text; completed requests",
    "TPOT": "from the first event with text to the last, over the answer's tokens less one; completed requests of two tokens or more",
    "ITL": "between one event with text and the next, which may carry several tokens; all gaps of completed requests",
    "E2E": "from a request's sending to the end of its stream; completed requests",
    "lag": "from the moment at which the schedule wanted a request sent to its sending: the client's own delay; all requests",
    "in flight": "requests sent and not ended: the mean over the duration, and the most at any moment",
    "within SLO": "requests that completed within every limit, over all requests",
    "goodput": "requests that completed within every limit, over the duration",
}


class Slo(Struct, frozen=True, kw_only=True):
    """Limits that a request must keep, each if it is set, and the share of requests that must keep them."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    attain: float = 0.95

    def met_by(self, sample: RequestSample) -> bool:
        if not sample.complete:
            return False
        times = ((self.ttft_ms, sample.ttft_ns), (self.tpot_ms, sample.tpot_ns), (self.e2e_ms, sample.e2e_ns))
        return all(limit is None or ns is None or ns / NS_PER_MS <= limit for limit, ns in times)

    def __str__(self) -> str:
        limits = (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("E2E", self.e2e_ms))
        return ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits if limit is not None)


class Spread(Struct, frozen=True):
    """Of durations, in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class RunFigures(Struct, frozen=True, kw_only=True):
    requests: int
    completed: int
    failures: dict[str, int]
    duration_s: float
    offered_rate: float | None
    completed_rate: float
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    lag_ms: Spread | None
    mean_in_flight: float
    peak_in_flight: int
    within_slo: float | None
    goodput: float | None

    @property
    def allowed_lag_ms(self) -> float:
        return max(KEPT_UP_MS, KEPT_UP_SHARE * 1000 / self.offered_rate) if self.offered_rate else KEPT_UP_MS

    @property
    def kept_up(self) -> bool:
        return self.lag_ms is None or self.lag_ms.p99 <= self.allowed_lag_ms

    @property
    def failed(self) -> int:
        return self.requests - self.completed

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def run_figures(samples: Sequence[RequestSample], *, scheduled: bool, slo: Slo | None) -> RunFigures:
    """Of one run with at least one request; `scheduled`: it was an open loop."""
    done = [sample for sample in samples if sample.complete]
    began = min(sample.scheduled_ns for sample in samples)
    ended = max(sample.ended_ns for sample in samples)
    seconds = max(ended - began, 1) / NS_PER_S
    output_tokens = sum(sample.num_output_tokens for sample in done)
    prompt_tokens = sum(sample.num_prompt_tokens for sample in done)
    met = None if slo is None else sum(slo.met_by(sample) for sample in samples)
    return RunFigures(
        requests=len(samples),
        completed=len(done),
        failures=dict(sorted(Counter(sample.failure for sample in samples if not sample.complete).items())),
        duration_s=seconds,
        offered_rate=_offered_rate(samples) if scheduled else None,
        completed_rate=len(done) / seconds,
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(sample.cached_tokens or 0 for sample in done),
        output_tokens_per_s=output_tokens / seconds,
        total_tokens_per_s=(output_tokens + prompt_tokens) / seconds,
        ttft_ms=spread(sample.ttft_ns for sample in done),
        tpot_ms=spread(ns for sample in done if (ns := sample.tpot_ns) is not None),
        itl_ms=spread(gap for sample in done for gap in text_gaps(sample)),
        e2e_ms=spread(sample.e2e_ns for sample in done),
        lag_ms=spread(sample.lag_ns for sample in samples) if scheduled else None,
        mean_in_flight=sum(sample.e2e_ns for sample in samples) / NS_PER_S / seconds,
        peak_in_flight=_peak_in_flight(samples),
        within_slo=None if met is None else met / len(samples),
        goodput=None if met is None else met / seconds,
    )


def text_gaps(sample: RequestSample) -> list[int]:
    return [after - before for before, after in pairwise(sample.text_ns)]


def spread(durations_ns: Iterable[float]) -> Spread | None:
    """None where there is nothing to spread."""
    values = sorted(ns / NS_PER_MS for ns in durations_ns)
    if not values:
        return None
    p50, p90, p95, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Spread(len(values), math.fsum(values) / len(values), p50, p90, p95, p99, values[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two values around place `share` × (count − 1), counted from 0."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _offered_rate(samples: Sequence[RequestSample]) -> float | None:
    """None where all were scheduled at once."""
    times = [sample.scheduled_ns for sample in samples]
    seconds = (max(times) - min(times)) / NS_PER_S
    return (len(times) - 1) / seconds if seconds else None


def _peak_in_flight(samples: Sequence[RequestSample]) -> int:
    # One that ends at the moment another is sent makes room for it: -1 sorts before +1.
    changes = sorted([(s.sent_ns, 1) for s in samples] + [(s.ended_ns, -1) for s in samples])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
