"""From the record and the samples to every figure that is told. The experiment and its checker both come here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from trivium.bench.compare import Compared, compare
from trivium.bench.figures import RunFigures, run_figures
from trivium.bench.record import SIDES, Record
from trivium.bench.samples import RequestSample
from trivium.bench.server_view import Agreement, Metrics, agreements

PROMPT_TOLERANCE = 0.15  # words are drawn, and their tokens with them


class Results(Struct, frozen=True, kw_only=True):
    runs: list[RunFigures]
    slo_rate: float | None = None  # highest rate of a run that kept the SLO
    compared: Compared | None = None
    agreements: list[Agreement] = []  # of the servers' clocks with the client's
    warnings: list[str] = []


def results_of(record: Record, samples: Sequence[RequestSample], metrics: Sequence[Metrics] = ()) -> Results:
    """Every run of the record has samples. `metrics` are those of the targets, in their order."""
    by_run: list[list[RequestSample]] = [[] for _ in record.runs]
    for sample in samples:
        by_run[sample.run].append(sample)
    runs = [
        run_figures(of_run, scheduled=plan.loop == "open", slo=record.slo)
        for plan, of_run in zip(record.runs, by_run, strict=True)
    ]
    compared = None if record.comparison is None else compare(record.comparison, record.runs, by_run, runs)
    return Results(
        runs=runs,
        slo_rate=_slo_rate(record, runs),
        compared=compared,
        agreements=_agreements(record, samples, metrics),
        warnings=[*_warnings(record, runs), *_other_lengths(record, samples)],
    )


def _agreements(record: Record, samples: Sequence[RequestSample], metrics: Sequence[Metrics]) -> list[Agreement]:
    if len({target.base_url for target in record.targets}) < len(record.targets):
        return []  # one server under two names cannot tell whose requests were whose
    found = []
    for target, of_target in enumerate(metrics):
        side = SIDES[target] if record.comparison else None
        found += agreements(target, of_target, [sample for sample in samples if record.runs[sample.run].side == side])
    return found


def headline_run(record: Record, results: Results) -> int:
    """The run that a report shows first: the one at the rate that a search found, else the one with the most tokens a second."""
    if record.mode == "slo" and results.slo_rate is not None:
        return next(number for number, plan in enumerate(record.runs) if plan.rate == results.slo_rate)
    return max(range(len(results.runs)), key=lambda number: results.runs[number].output_tokens_per_s)


def _slo_rate(record: Record, runs: Sequence[RunFigures]) -> float | None:
    if record.slo is None:
        return None
    rates = [
        plan.rate
        for plan, figures in zip(record.runs, runs, strict=True)
        if plan.rate is not None and figures.within_slo is not None and figures.within_slo >= record.slo.attain
    ]
    return max(rates, default=None)


def _warnings(record: Record, runs: Sequence[RunFigures]) -> list[str]:
    warnings = []
    for plan, figures in zip(record.runs, runs, strict=True):
        if figures.failed:
            kinds = ", ".join(f"{count} × {kind}" for kind, count in figures.failures.items())
            warnings.append(f"{plan.label}: {figures.failed} of {figures.requests} requests failed ({kinds})")
        if figures.lag_ms is not None and not figures.kept_up:
            warnings.append(
                f"{plan.label}: the client did not keep up with its schedule: it was {figures.lag_ms.p99:.1f} ms late at the"
                f" 99th percentile ({figures.allowed_lag_ms:.3g} ms are allowed), so the load was not the one that was asked for"
            )
    return warnings


def _other_lengths(record: Record, samples: Sequence[RequestSample]) -> Iterator[str]:
    """Where the server did not do the work that was planned."""
    done = [sample for sample in samples if sample.complete]
    short = [sample for sample in done if sample.num_output_tokens < sample.planned_output_tokens]
    if record.full_answers and short:
        yield (
            f"{len(short)} of {len(done)} answers were shorter than planned: the server ended them although it was asked not to"
        )
    planned = sum(sample.planned_prompt_tokens for sample in done)
    counted = sum(sample.num_prompt_tokens for sample in done)
    if abs(counted - planned) > PROMPT_TOLERANCE * planned:
        yield f"prompts had {counted / planned:.0%} of the planned tokens, as the server counts them"
