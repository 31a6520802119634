"""The figures as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trivium.bench.compare import Compared, Ratio
from trivium.bench.figures import RunFigures, Spread
from trivium.bench.record import SIDES, Record
from trivium.bench.results import Results

DETAILED_RUNS = 4  # more than these are told by one line each
SUMMARY_COLUMNS = (
    "run", "requests", "failed", "duration", "offered", "completed", "output tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "E2E p50", "cached",
)  # fmt: skip
RATIO_NAMES = {"e2e": "E2E, ms", "ttft": "TTFT, ms", "tpot": "TPOT, ms", "throughput": "output tok/s"}


def result_lines(record: Record, results: Results) -> Iterator[str]:
    yield record.title
    names = ("A: ", "B: ") if len(record.targets) > 1 else ("",)
    for name, target in zip(names, record.targets, strict=True):
        yield f"  {name}{target.model} at {target.base_url}"
    yield ""
    yield from aligned(summary_rows(record, results))
    if has_details(record):
        for plan, figures in zip(record.runs, results.runs, strict=True):
            yield ""
            yield f"{plan.label}, milliseconds"
            yield from aligned(spread_rows(figures))
            yield other_figures(figures)
    if results.compared is not None:
        yield ""
        yield from _compared_lines(results.compared)
    if record.mode == "slo" and record.slo is not None:
        yield ""
        yield slo_sentence(record, results)
    if results.agreements:
        yield ""
        yield from aligned(agreement_rows(record, results))
    for note in record.notes:
        yield f"note: {note}"
    for warning in results.warnings:
        yield f"warning: {warning}"


def has_details(record: Record) -> bool:
    """Whether each run is told with all its percentiles."""
    return len(record.runs) <= DETAILED_RUNS and record.mode not in ("slo", "compare")


def summary_rows(record: Record, results: Results) -> list[Sequence[str]]:
    """A head and a row for each run."""
    slo_columns = () if record.slo is None else ("within SLO", "goodput")
    rows: list[Sequence[str]] = [(*SUMMARY_COLUMNS, *slo_columns)]
    for plan, figures in zip(record.runs, results.runs, strict=True):
        row = (plan.label, *_summary(figures))
        if record.slo is not None:
            row = (*row, f"{figures.within_slo:.1%}", f"{figures.goodput:.3g}/s")
        rows.append(row)
    return rows


def _summary(figures: RunFigures) -> tuple[str, ...]:
    return (
        str(figures.requests),
        str(figures.failed),
        f"{figures.duration_s:.2f} s",
        "–" if figures.offered_rate is None else f"{figures.offered_rate:.3g}/s",
        f"{figures.completed_rate:.3g}/s",
        f"{figures.output_tokens_per_s:.1f}",
        _ms(figures.ttft_ms, "p50"),
        _ms(figures.ttft_ms, "p99"),
        _ms(figures.tpot_ms, "p50"),
        _ms(figures.e2e_ms, "p50"),
        f"{figures.cached_share:.1%}",
    )


def spread_rows(figures: RunFigures) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("", "mean", "p50", "p90", "p95", "p99", "max", "count")]
    named = (
        ("TTFT", figures.ttft_ms),
        ("TPOT", figures.tpot_ms),
        ("ITL", figures.itl_ms),
        ("E2E", figures.e2e_ms),
        ("client lag", figures.lag_ms),
    )
    for name, spread in named:
        if spread is not None:
            values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
            rows.append((name, *map(significant, values), str(spread.count)))
    return rows


def other_figures(figures: RunFigures) -> str:
    return (
        f"{figures.mean_in_flight:.3g} requests in flight on average, {figures.peak_in_flight} at most;"
        f" {figures.prompt_tokens} tokens of prompts and {figures.output_tokens} of answers,"
        f" {figures.total_tokens_per_s:.1f} tokens/s in all"
    )


def agreement_rows(record: Record, results: Results) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("mean over all runs, ms", "client's clock", "server's clock", "between")]
    for one in results.agreements:
        side = f" {SIDES[one.target].upper()}" if record.comparison else ""
        between = one.client_ms - one.server_ms
        rows.append((f"{one.what}{side}", significant(one.client_ms), significant(one.server_ms), f"{between:.2f}"))
    return rows


def slo_sentence(record: Record, results: Results) -> str:
    assert record.slo is not None
    wanted = f"{record.slo.attain:.0%} of requests within {record.slo}"
    if results.slo_rate is None:
        return f"no rate that was tried kept {wanted}"
    return f"highest rate with {wanted}: {results.slo_rate:.4g} requests/s"


def verdict_sentence(compared: Compared) -> str:
    match compared.verdict:
        case None:
            return "there is nothing to compare: in some run no request completed"
        case "no difference shown":
            return "no difference shown"
        case verdict:
            return f"B is {verdict} than A"


def ratio_rows(compared: Compared, confidence: float) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("", "A", "B", "B / A", f"{confidence:.0%} interval", "B is")]
    rows += [_ratio_row(ratio) for ratio in compared.ratios]
    return rows


def _ratio_row(ratio: Ratio) -> Sequence[str]:
    interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
    name = RATIO_NAMES[ratio.what]
    return (name, significant(ratio.a), significant(ratio.b), f"{ratio.ratio:.3f}", interval, ratio.verdict)


def _compared_lines(compared: Compared) -> Iterator[str]:
    rows = [("", "A", "B", "B / A", "interval", "B is"), *map(_ratio_row, compared.ratios)]
    yield from aligned(rows)
    yield ""
    yield f"{verdict_sentence(compared)} ({compared.rounds} rounds)"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def significant(value: float) -> str:
    """Three digits that mean something, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ms(spread: Spread | None, which: str) -> str:
    return "–" if spread is None else f"{significant(getattr(spread, which))} ms"
