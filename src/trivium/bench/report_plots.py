"""Which plots a report has, and the values in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from trivium.bench.figures import NS_PER_MS, NS_PER_S, RunFigures, percentile, text_gaps
from trivium.bench.plots import (
    NUM_COLOURS,
    Bar,
    Interval,
    Series,
    interval_plot,
    line_plot,
    request_bars,
)
from trivium.bench.record import Record
from trivium.bench.results import Results, headline_run
from trivium.bench.samples import RequestSample
from trivium.bench.table import RATIO_NAMES, significant

CURVE_POINTS = 120
TIME_BINS = 60
MOST_BARS = 250
LEAST_MS = 0.1  # what is shorter is drawn there: events that came in one piece have no time between them
TIMES = ("TTFT", "ITL", "E2E")


class Plot(Struct, frozen=True):
    title: str
    beside: str
    svg: str
    legend: list[tuple[str, str]] = []  # names and style classes


class Group(Struct, frozen=True):
    """Samples that share a curve: a run, or one side of a comparison."""

    name: str
    samples: list[RequestSample]


def plots_of(record: Record, samples: Sequence[RequestSample], results: Results) -> Iterator[Plot]:
    groups = _groups(record, samples)
    if results.compared is not None and results.compared.ratios:
        yield _ratios(results)
    if record.mode == "slo":
        yield _attained(record, results)
    rated = [(plan.rate, run) for plan, run in zip(record.runs, results.runs, strict=True) if plan.rate is not None]
    if len({rate for rate, _ in rated}) > 1 and record.comparison is None:
        yield _by_rate(sorted(rated, key=lambda pair: pair[0]))
    if len(groups) <= NUM_COLOURS:
        for name in TIMES:
            yield from _distribution(name, groups)
    number = headline_run(record, results)
    shown, label = [sample for sample in samples if sample.run == number], record.runs[number].label
    yield _tokens_over_time(shown, label)
    yield _in_flight(shown, label)
    yield _requests(shown, label)


def _groups(record: Record, samples: Sequence[RequestSample]) -> list[Group]:
    if record.comparison is not None:
        sides = {side: [s for s in samples if record.runs[s.run].side == side] for side in ("a", "b")}
        return [Group(side.upper(), of_side) for side, of_side in sides.items()]
    return [
        Group(plan.label, [sample for sample in samples if sample.run == number])
        for number, plan in enumerate(record.runs)
    ]


def _legend(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, f"c{index % NUM_COLOURS}") for index, name in enumerate(names)] if len(names) > 1 else []


def _times(name: str, samples: Sequence[RequestSample]) -> list[float]:
    """Milliseconds, in order."""
    of: dict[str, Callable[[RequestSample], list[int]]] = {
        "TTFT": lambda sample: [sample.ttft_ns],
        "ITL": text_gaps,
        "E2E": lambda sample: [sample.e2e_ns],
    }
    return sorted(ns / NS_PER_MS for sample in samples if sample.complete for ns in of[name](sample))


def _distribution(name: str, groups: Sequence[Group]) -> Iterator[Plot]:
    series = []
    for colour, group in enumerate(groups):
        if times := _times(name, group.samples):
            shares = [index / CURVE_POINTS for index in range(CURVE_POINTS + 1)]
            points = [(max(percentile(times, share), LEAST_MS), share * 100) for share in shares]
            series.append(Series(group.name, points, colour))
    if series:
        svg = line_plot(
            series, "milliseconds", "% of requests" if name != "ITL" else "% of gaps", may_log_x=True, y_high=100
        )
        yield Plot(name, "share that took so long or less", svg, _legend([group.name for group in groups]))


def _by_rate(rated: Sequence[tuple[float, RunFigures]]) -> Plot:
    series = [
        Series("TTFT p50", [(rate, run.ttft_ms.p50) for rate, run in rated if run.ttft_ms], 0, True),
        Series("TTFT p99", [(rate, run.ttft_ms.p99) for rate, run in rated if run.ttft_ms], 1, True),
        Series("E2E p50", [(rate, run.e2e_ms.p50) for rate, run in rated if run.e2e_ms], 2, True),
    ]
    svg = line_plot(series, "requests a second", "milliseconds")
    return Plot("Latency by rate", "", svg, _legend([one.name for one in series]))


def _attained(record: Record, results: Results) -> Plot:
    pairs = zip(record.runs, results.runs, strict=True)
    points = sorted((plan.rate or 0.0, (run.within_slo or 0.0) * 100) for plan, run in pairs)
    svg = line_plot(
        [Series("within SLO", points, 0, True)],
        "requests a second",
        "% within SLO",
        y_high=100,
        y_line=record.slo.attain * 100 if record.slo else None,
    )
    return Plot("Requests within the SLO", str(record.slo), svg)


def _ratios(results: Results) -> Plot:
    assert results.compared is not None
    intervals = [
        Interval(
            RATIO_NAMES[ratio.what].partition(",")[0],
            ratio.low,
            ratio.ratio,
            ratio.high,
            f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        )
        for ratio in results.compared.ratios
    ]
    return Plot("B / A", "with intervals; 1 is no difference", interval_plot(intervals, "ratio"))


def _tokens_over_time(samples: Sequence[RequestSample], label: str) -> Plot:
    """An event with text counts for its share of the answer's tokens."""
    end = max(sample.ended_ns for sample in samples)
    width = max(end / TIME_BINS, 1)
    bins = [0.0] * (TIME_BINS + 1)
    for sample in samples:
        for at in sample.text_ns:
            bins[int(at / width)] += sample.num_output_tokens / len(sample.text_ns)
    points = [((index + 0.5) * width / NS_PER_S, count / (width / NS_PER_S)) for index, count in enumerate(bins[:-1])]
    svg = line_plot([Series("output", points)], "seconds", "tokens/s")
    return Plot("Output over time", label, svg)


def _in_flight(samples: Sequence[RequestSample], label: str) -> Plot:
    changes = sorted([(s.sent_ns, 1) for s in samples] + [(s.ended_ns, -1) for s in samples])
    points, now = [(0.0, 0.0)], 0
    for at, change in changes:
        points.append((at / NS_PER_S, float(now)))
        now += change
        points.append((at / NS_PER_S, float(now)))
    svg = line_plot([Series("in flight", points, 2)], "seconds", "requests", whole_y=True)
    return Plot("Requests in flight", label, svg)


def _requests(samples: Sequence[RequestSample], label: str) -> Plot:
    shown = sorted(samples, key=lambda sample: sample.sent_ns)[:MOST_BARS]
    bars = [
        Bar(
            sample.sent_ns / NS_PER_S,
            (sample.text_ns[0] if sample.text_ns else sample.ended_ns) / NS_PER_S,
            sample.ended_ns / NS_PER_S,
            not sample.complete,
            _tip(sample),
        )
        for sample in shown
    ]
    beside = label if len(shown) == len(samples) else f"{label}, the first {len(shown)} of {len(samples)}"
    legend = [("to the first text", "wait"), ("text", "work"), ("failed", "failed")]
    return Plot("Each request", beside, request_bars(bars, "seconds"), legend)


def _tip(sample: RequestSample) -> str:
    if not sample.complete:
        return f"request {sample.index}: {sample.failure}"
    times = f"TTFT {significant(sample.ttft_ns / NS_PER_MS)} ms, E2E {significant(sample.e2e_ns / NS_PER_MS)} ms"
    return f"request {sample.index}: {times}, {sample.num_prompt_tokens} + {sample.num_output_tokens} tokens"
