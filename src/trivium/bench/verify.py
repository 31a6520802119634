"""Checks a bundle: that its files are those that were written, and that every figure follows from the samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from trivium.bench.bundle import DIGESTS, REPORT, Evidence, bundle_digest, file_digest, read_bundle, read_digests
from trivium.bench.errors import BenchError
from trivium.bench.record import REPORT_VERSION
from trivium.bench.report_html import report_page
from trivium.bench.results import results_of

TOLERANCE = 1e-9  # relative: logarithms may differ in their last bits from one machine to another


def problems_of(folder: Path, digest: str | None = None) -> Iterator[str]:
    """A sentence for each thing that does not hold; none if all is well. `digest`: the bundle's, told elsewhere."""
    if digest is not None and bundle_digest(folder) != digest.lower():
        yield f"the bundle's digest is {bundle_digest(folder)}, not {digest}"
    yield from _changed_files(folder)
    try:
        evidence = read_bundle(folder)
    except BenchError as error:
        yield str(error)
        return
    odd = list(_odd_samples(evidence))
    yield from odd
    if not odd:
        yield from _wrong_figures(folder, evidence)


def _changed_files(folder: Path) -> Iterator[str]:
    digests = read_digests(folder)
    present = {path.name for path in folder.iterdir()} - {DIGESTS}
    for name in sorted(present - digests.keys()):
        yield f"{name} is not in {DIGESTS}"
    for name, digest in digests.items():
        if name not in present:
            yield f"{name} is missing"
        elif file_digest(folder / name) != digest:
            yield f"{name} is not the file whose digest was written"


def _odd_samples(evidence: Evidence) -> Iterator[str]:
    """Samples that no run could have made."""
    runs = range(len(evidence.record.runs))
    counts = Counter(sample.run for sample in evidence.samples)
    for run in runs:
        if not counts[run]:
            yield f"run {run} has no samples"
    seen: set[tuple[int, int]] = set()
    for sample in evidence.samples:
        place = f"run {sample.run}, request {sample.index}"
        if sample.run not in runs:
            yield f"{place}: there is no such run"
        if (sample.run, sample.index) in seen:
            yield f"{place}: it is there twice"
        seen.add((sample.run, sample.index))
        if sample.complete and not sample.text_ns:
            yield f"{place}: it is complete without an answer"
        times = [sample.sent_ns, *sample.text_ns, sample.ended_ns]
        if sample.scheduled_ns > sample.sent_ns or times != sorted(times):
            yield f"{place}: its times are not in order"


def _wrong_figures(folder: Path, evidence: Evidence) -> Iterator[str]:
    again = results_of(evidence.record, evidence.samples, evidence.metrics)
    yield from differences("figures", msgspec.to_builtins(evidence.figures), msgspec.to_builtins(again))
    if evidence.record.report_version == REPORT_VERSION and (folder / REPORT).exists():
        page = report_page(evidence.record, evidence.samples, again)
        if (folder / REPORT).read_text() != page:
            yield f"{REPORT} is not the report that the samples make"


def differences(place: str, told: Any, found: Any) -> Iterator[str]:
    """Where two trees of figures differ."""
    if isinstance(told, dict) and isinstance(found, dict):
        for key in sorted({*told, *found}):
            yield from differences(f"{place}.{key}", told.get(key), found.get(key))
    elif isinstance(told, list) and isinstance(found, list) and len(told) == len(found):
        for index, (one, other) in enumerate(zip(told, found, strict=True)):
            yield from differences(f"{place}[{index}]", one, other)
    elif isinstance(told, int | float) and isinstance(found, int | float):
        if not math.isclose(told, found, rel_tol=TOLERANCE, abs_tol=0.0):
            yield f"{place} is told as {told}, and the samples give {found}"
    elif told != found:
        yield f"{place} is told as {told!r}, and the samples give {found!r}"
