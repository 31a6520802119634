"""A report as lines for the terminal: all of it for `doctor`, the short form for the start."""

from __future__ import annotations

from collections.abc import Iterator

from trivium.types.checks import Check
from trivium.types.report import Report


def doctor_report(report: Report) -> Iterator[str]:
    yield from _platform_lines(report)
    if (model := report.model) is not None:
        yield f"model     {model.path} ({model.family}, weights {model.weights}, activations {model.dtype})"
    yield from kernel_lines(report)
    if report.graph:
        yield f"graph     {report.graph}"
    if report.compiles:
        yield f"compiles  {report.compiles}"
    yield from memory_lines(report)
    yield from choice_lines(report)
    yield from _check_lines(report.checks)
    yield _verdict(report)


def kernel_lines(report: Report) -> Iterator[str]:
    """Most ops have the same kernel for the same reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for choice in report.kernels:
        found.setdefault((choice.kernel, choice.reason), []).append(choice.op)
    for (kernel, reason), ops in found.items():
        yield f"kernels   {kernel} ({reason}): {', '.join(ops)}"


def choice_lines(report: Report) -> Iterator[str]:
    for line in report.fallbacks:
        yield f"slower    {line}"
    for adjustment in report.adjustments:
        yield f"chosen    {adjustment.option} = {adjustment.value}: {adjustment.reason}"


def short_memory_line(report: Report) -> str:
    parts = (f"{item.what} {_size(item.planned_bytes)}" for item in report.memory)
    grown = report.happened.resident_bytes - report.happened.resident_before_bytes if report.happened else 0
    return f"memory    {', '.join(parts)}; the process grew by {_size(max(0, grown))}"


def memory_lines(report: Report) -> Iterator[str]:
    for item in report.memory:
        used = "" if item.used_bytes is None else f", {_size(item.used_bytes)} counted"
        yield f"memory    {item.what:<16} {_size(item.planned_bytes):>10}{used} ({item.note})"
    if report.model is not None and report.room is not None:
        room, model = report.room, report.model
        cache = f"{room.tokens} tokens in {model.kv_cache_dtype} blocks of {model.block_size}"
        if room.context > model.max_model_len:
            yield f"room      {cache}; none for {room.context} tokens, since sequences end at {model.max_model_len}"
        else:
            yield f"room      {cache}; {room.requests} requests of {room.context} tokens at once (longest {model.max_model_len})"


def _platform_lines(report: Report) -> Iterator[str]:
    if (platform := report.platform) is None:
        return
    yield f"platform  {platform.name} on {platform.device}: {platform.product} (contract {platform.contract}, {platform.support})"
    for one in platform.considered:
        if one.state != "present":
            yield f"          not {one.name}, which is {one.state}: {one.reason}"


def _check_lines(checks: tuple[Check, ...]) -> Iterator[str]:
    fine = sum(check.state == "ok" for check in checks)
    if checks:
        yield f"checks    {fine} of {len(checks)} are fine"
    for check in checks:
        if check.state != "ok":
            remedy = f" → {check.remedy}" if check.remedy else ""
            yield f"{check.state.upper():<9} {check.name}: {check.measured} (wanted: {check.wanted}){remedy}"


def _verdict(report: Report) -> str:
    if report.refusal is not None:
        return f"REFUSED   {report.refusal.reason}"
    if not report.runs:
        return "REFUSED   a check failed"
    return "verdict   it will run" if report.model is not None else "verdict   the machine can run models"


def _size(count: int) -> str:
    for unit, bytes_of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_of:
            return f"{count / bytes_of:.1f} {unit}"
    return f"{count} B"
