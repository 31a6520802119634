"""Ops that somebody else brings are held to the reference before the first step: what is wrong there never runs.

Each op is tried on its own cases, awkward ones included, within a time box. One that throws, gives other shapes or other
numbers, is replaced by the reference, and its provider's line says why.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Generator, Tensor

from trivium.kernels import fused_cases
from trivium.kernels.cases import Case
from trivium.kernels.fused_cases import mapped
from trivium.kernels.ops import OP_NAMES, Capture, Ops, Provider
from trivium.kernels.select import reference_ops

SECONDS_PER_OP = 0.5

# Ops that read what another one, or `prepare`, has laid: they fall together.
TOGETHER = (("linear", "experts"), ("write_kv", "paged_attention"))

# Where the weights of an op stand among its arguments. They are prepared first, and the kernels may then round their
# inputs to 8 bits, hence a tolerance of their own: a fraction of the largest result.
PREPARED = {"linear": (1,), "experts": (3, 4, 5)}
PREPARED_TOLERANCE = 0.03


@dataclass(frozen=True)
class Verified:
    ops: Ops
    problems: tuple[str, ...]  # one line for each thing that will not be used


def verified(ops: Ops, device: str = "cpu", seconds_per_op: float = SECONDS_PER_OP) -> Verified:
    problems = {op: problem for op in OP_NAMES if (problem := _problem(op, ops, device, seconds_per_op)) is not None}
    for group in TOGETHER:
        if wrong := [op for op in group if op in problems]:
            problems |= {op: f"{wrong[0]} is wrong, and they share a layout" for op in group if op not in problems}
    lines = [f"{op}: {problem}" for op, problem in problems.items()]
    kept = _without(ops, problems) if problems else ops
    if kept.fused is not None and (problem := _fused_problem(kept, device, seconds_per_op)) is not None:
        kept = replace(kept, fused=None, joins_layers=False)
        lines.append(f"fused ops: {problem}")
    if kept.capture is not None and (problem := _capture_problem(kept.capture, device)) is not None:
        kept = replace(kept, capture=None)
        lines.append(f"captured steps: {problem}")
    return Verified(kept, tuple(lines))


def _problem(op: str, ops: Ops, device: str, seconds: float) -> str | None:
    """What is wrong with an op, or None as far as was seen in time."""
    if op in ("write_kv", "paged_attention") and not isinstance(ops.kv_layout, type(reference_ops("").kv_layout)):
        return None  # the cases are in the reference's layout; the provider's own tests must speak for it
    module = import_module(f"trivium.kernels.{op}")
    return _first_problem(
        (case.name, partial(_wrong, op, case, module, ops, device))
        for case in _in_time(module.cases(Generator().manual_seed(0)), seconds)
    )


def _fused_problem(ops: Ops, device: str, seconds: float) -> str | None:
    reference = reference_ops("")
    allowed = fused_cases.TOLERANCE[torch.float32]

    def wrong(case: fused_cases.FusedCase) -> str | None:
        off = fused_cases.case_error(case, ops, reference, device)
        return f"off by {off:.2g} of the largest value, and {allowed:g} is allowed" if off > allowed else None

    drawn = fused_cases.cases(Generator().manual_seed(0), torch.float32)
    return _first_problem((case.name, partial(wrong, case)) for case in _in_time(drawn, seconds))


def _in_time(cases: Iterator[Any], seconds: float) -> Iterator[Any]:
    until = time.monotonic() + seconds
    for case in cases:
        yield case
        if time.monotonic() > until:
            return


def _first_problem(tries: Iterator[tuple[str, Callable[[], str | None]]]) -> str | None:
    for name, look in tries:
        try:
            problem = look()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            return f"{problem} (case {name})"
    return None


def _wrong(op: str, case: Case, module: Any, ops: Ops, device: str) -> str | None:
    arguments = mapped(copy.deepcopy(case.arguments), lambda tensor: tensor.to(device))
    tolerance = case.tolerance or module.TOLERANCE
    if op in PREPARED:
        tolerance = max(tolerance, PREPARED_TOLERANCE)
        arguments = tuple(
            _prepared(argument, ops) if place in PREPARED[op] else argument for place, argument in enumerate(arguments)
        )
    want, got = module.reference(*case.arguments), getattr(ops, op)(*arguments)
    wanted, found = _tensors(want), _tensors(got)
    if op not in PREPARED:  # and what it wrote into
        wanted, found = wanted + _tensors(case.arguments), found + _tensors(arguments)
    for right, given in zip(wanted, found, strict=True):
        if given.shape != right.shape:
            return f"a result of shape {list(given.shape)} where {list(right.shape)} is right"
        if not _is_near(given.cpu().double(), right.double(), tolerance):
            return f"numbers further from the reference than {tolerance:g} of the largest"
    return None


def _is_near(given: Tensor, right: Tensor, tolerance: float) -> bool:
    """What is no number, or infinite, must be so in both."""
    finite = right[right.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 0.0
    return torch.allclose(given, right, rtol=0, atol=max(tolerance, 1e-6) * scale, equal_nan=True)


def _prepared(weight: Any, ops: Ops) -> Any:
    if isinstance(weight, Tensor) and not ops.takes_stored_floats:
        weight = weight.float()
    return ops.prepare(weight)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return _tensors([getattr(value, field.name) for field in fields(value)])
    return []


def _capture_problem(capture: Capture, device: str) -> str | None:
    """A captured step must read its inputs anew at each replay."""
    given, result = torch.zeros(4, device=device), torch.zeros(4, device=device)

    def work() -> None:
        result.copy_(given * 2 + 1)

    try:
        work()
        replay = capture(work)
        for value in (3.0, 5.0):
            given.fill_(value)
            replay()
            if result.cpu().tolist() != [2 * value + 1] * 4:
                return "a replay gives what another input gave"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _without(ops: Ops, problems: dict[str, str]) -> Ops:
    """With the reference in the places of those ops, and without what has them inside."""
    reference = reference_ops("")
    changes: dict[str, Any] = {op: getattr(reference, op) for op in problems}
    changes |= {"fused": None, "record": None, "joins_layers": False}
    if "linear" in problems:
        changes |= {"prepare": reference.prepare, "packing": None, "takes_stored_floats": False}
    if "write_kv" in problems:
        changes["kv_layout"] = reference.kv_layout
    wrong = {op: Provider("reference", problem) for op, problem in problems.items()}
    return replace(ops, **changes, providers=ops.providers | wrong)
