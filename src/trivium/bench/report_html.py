"""The report: one page that needs nothing but itself, made from the record, the samples and the figures alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources

from trivium.bench.figures import MEANINGS, RunFigures, Spread
from trivium.bench.record import Record
from trivium.bench.report_plots import Plot, plots_of
from trivium.bench.results import Results, headline_run
from trivium.bench.samples import RequestSample
from trivium.bench.table import (
    RATIO_NAMES,
    agreement_rows,
    has_details,
    other_figures,
    ratio_rows,
    significant,
    spread_rows,
    summary_rows,
    verdict_sentence,
)

SHORT_VALUE = 12  # characters; longer ones are sentences, and set smaller


def report_page(record: Record, samples: Sequence[RequestSample], results: Results) -> str:
    style = resources.files("trivium.bench").joinpath("report.css").read_text()
    body = "\n".join(_body(record, samples, results))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(record.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _body(record: Record, samples: Sequence[RequestSample], results: Results) -> Iterator[str]:
    yield from _header(record)
    for warning in results.warnings:
        yield f'<p class="warning">{escape(warning)}</p>'
    yield '<section class="cards">'
    yield from _cards(record, results)
    yield "</section>"
    yield "<h2>Runs</h2>"
    yield _table(summary_rows(record, results))
    if results.compared is not None and record.comparison is not None:
        yield "<h2>Ratios</h2>"
        yield _table(ratio_rows(results.compared, record.comparison.confidence))
    yield "<h2>Plots</h2>"
    yield '<section class="plots">'
    yield from map(_figure, plots_of(record, samples, results))
    yield "</section>"
    if has_details(record):
        yield '<section class="plots">'
        for plan, figures in zip(record.runs, results.runs, strict=True):
            yield f'<div><h2>{escape(plan.label)} <span class="soft">milliseconds</span></h2>'
            yield f'{_table(spread_rows(figures))}<p class="note">{escape(other_figures(figures))}</p></div>'
        yield "</section>"
    if results.agreements:
        yield "<h2>The server's own clock</h2>"
        yield _table(agreement_rows(record, results))
    yield from _background(record)


def _header(record: Record) -> Iterator[str]:
    names = ("A: ", "B: ") if len(record.targets) > 1 else ("",)
    served = ", ".join(f"{name}{one.model} at {one.base_url}" for name, one in zip(names, record.targets, strict=True))
    yield f"<header><h1>{escape(record.title)}</h1>"
    yield f"<p>{escape(record.mode)} · {escape(served)} · {escape(record.started_at)}</p></header>"


def _cards(record: Record, results: Results) -> Iterator[str]:
    if results.compared is not None:
        yield _card("verdict", verdict_sentence(results.compared), "", f"{results.compared.rounds} rounds, interleaved")
        for ratio in results.compared.ratios:
            beside = f"{ratio.low:.3f} to {ratio.high:.3f}"
            yield _card(f"{RATIO_NAMES[ratio.what].partition(',')[0]}, B / A", f"{ratio.ratio:.3f}", "×", beside)
        return
    if record.mode == "slo":
        value, unit = ("none", "") if results.slo_rate is None else (f"{results.slo_rate:.4g}", "/s")
        yield _card(
            "highest good rate",
            value,
            unit,
            f"{record.slo.attain:.0%} within {record.slo}" if record.slo else "",
        )
    if record.mode == "prefix" and len(results.runs) == 2:
        yield from _prefix_cards(*results.runs)
        return
    number = headline_run(record, results)
    yield from _run_cards(record.runs[number].label, results.runs[number], found_by_search=record.mode == "slo")


def _run_cards(label: str, figures: RunFigures, *, found_by_search: bool) -> Iterator[str]:
    yield _card("output", f"{figures.output_tokens_per_s:.1f}", "tok/s", label)
    for name, spread in (("TTFT p50", figures.ttft_ms), ("TPOT p50", figures.tpot_ms), ("E2E p50", figures.e2e_ms)):
        if spread is not None:
            yield _card(name, significant(spread.p50), "ms", f"p99 {significant(spread.p99)} ms")
    yield _card("completed", f"{figures.completed}", f"of {figures.requests}", f"in {figures.duration_s:.1f} s")
    if figures.within_slo is not None and not found_by_search:
        yield _card("within SLO", f"{figures.within_slo:.1%}", "", f"goodput {figures.goodput:.3g}/s")


def _prefix_cards(alone: RunFigures, shared: RunFigures) -> Iterator[str]:
    yield _card(
        "found in the cache", f"{shared.cached_share:.0%}", "of prompts", f"nothing shared: {alone.cached_share:.0%}"
    )
    pairs: tuple[tuple[str, Spread | None, Spread | None], ...] = (
        ("TTFT p50", alone.ttft_ms, shared.ttft_ms),
        ("E2E p50", alone.e2e_ms, shared.e2e_ms),
    )
    for name, before, after in pairs:
        if before is not None and after is not None:
            beside = f"nothing shared: {significant(before.p50)} ms, {before.p50 / max(after.p50, 1e-9):.2f} ×"
            yield _card(f"{name}, shared", significant(after.p50), "ms", beside)
    faster = shared.output_tokens_per_s / max(alone.output_tokens_per_s, 1e-9)
    yield _card("output, shared", f"{shared.output_tokens_per_s:.1f}", "tok/s", f"{faster:.2f} × nothing shared")


def _card(what: str, value: str, unit: str, beside: str) -> str:
    kind = "value" if len(value) <= SHORT_VALUE else "value words"
    return (
        f'<div class="card"><div class="what">{escape(what)}</div>'
        f'<div class="{kind}">{escape(value)} <small>{escape(unit)}</small></div>'
        f'<div class="beside">{escape(beside)}</div></div>'
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return '<div class="scroll"><table>' + "".join(lines) + "</table></div>"


def _figure(plot: Plot) -> str:
    legend = "".join(f'<span><i class="{colour}"></i>{escape(name)}</span>' for name, colour in plot.legend)
    return (
        f"<figure><figcaption>{escape(plot.title)} <span>{escape(plot.beside)}</span></figcaption>"
        f'{f"""<div class="legend">{legend}</div>""" if legend else ""}{plot.svg}</figure>'
    )


def _background(record: Record) -> Iterator[str]:
    yield "<h2>How it was measured</h2>"
    for note in record.notes:
        yield f'<p class="note">{escape(note)}</p>'
    yield "<details open><summary>What each figure means</summary>" + _definitions(MEANINGS) + "</details>"
    yield "<details><summary>Command, settings, servers</summary>"
    facts = {"command": shlex.join(record.command)}
    for target in record.targets:
        started = shlex.join(target.started_with) if target.started_with else "was running"
        context = "not told" if target.max_model_len is None else f"{target.max_model_len} tokens"
        facts[target.base_url] = f"{target.model}, context {context}, {started}"
    facts |= {name: str(value) for name, value in record.settings.items()}
    yield _definitions(facts) + "</details>"
    yield "<details><summary>Client's machine and software</summary>"
    yield _definitions({**record.machine, **record.software}) + "</details>"
    yield (
        "<details><summary>Evidence</summary><p>This page lies in a folder with the samples of every request, the figures, the"
        " servers' metrics before and after, and the digest of each file. "
        f"To check them, and to compute every figure again: <code>{escape(record.checker)}</code></p></details>"
    )


def _definitions(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()) + "</dl>"
