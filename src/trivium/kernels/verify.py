"""A provider's ops held to the reference: what lies, throws or is far slower than plain torch must not run.

Each op is tried on its own cases, awkward ones included, within a time box. `problem_of` tells what is wrong with one of
them, and `without` puts the reference in its place.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Generator, Tensor

from trivium.kernels import fused_cases, linear, paged_attention
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import Case
from trivium.kernels.fused_cases import mapped
from trivium.kernels.kv_layout import PlainLayout
from trivium.kernels.ops import OP_NAMES, Capture, Ops, Packing, Provider
from trivium.kernels.select import reference_ops
from trivium.kernels.weights import QuantizedTensor
from trivium.types.kv import KVSpec

SECONDS_PER_OP = 0.2
CASE_STRIDE = 11

# What is tried beside the ops of OP_NAMES.
FUSED, CAPTURED = "fused ops", "captured steps"
RECORDED = "recorded steps"  # of the model that is loaded, so that only a step in service tells

# Ops that read what another one, or `prepare`, has laid: they fall together.
TOGETHER = (("linear", "experts"), ("write_kv", "paged_attention"))

# Where the weights of an op stand among its arguments. They are prepared first, and the kernels may then round their
# inputs to 8 bits, hence a tolerance of their own: a fraction of the largest result.
PREPARED = {"linear": (1,), "experts": (3, 4, 5)}
PREPARED_TOLERANCE = 0.03
# Of weights in other forms than their blocks: rows of bytes, whose activations have one scale a row (0.038 was seen), and units.
OTHER_FORM_TOLERANCE = 0.05
# Of attention over keys, values, queries and weights of 8 bits.
INT8_CACHE_TOLERANCE = 0.05

# An op that takes so many times as long as plain torch, over all cases, is not worth its name. A first look may meet a
# busy machine or a kernel that is being compiled: only the shortest of several tries counts.
TOO_SLOW = 8.0
TRIES_OF_SLOW = 4
SLOW = "it takes"  # how such a problem begins: of the moment, not for ever


def subjects(ops: Ops, used: Iterable[str]) -> list[str]:
    """What there is to try."""
    extras = [FUSED] * (ops.fused is not None) + [CAPTURED] * (ops.capture is not None)
    return [op for op in OP_NAMES if op in set(used)] + extras


def problem_of(subject: str, ops: Ops, device: str = "cpu", seconds: float = SECONDS_PER_OP) -> str | None:
    """What is wrong with it, or None as far as was seen in time."""
    if subject == FUSED:
        return None if ops.fused is None else _fused_problem(ops, device, seconds)
    if subject == CAPTURED:
        return None if ops.capture is None else _capture_problem(ops.capture, device)
    if subject in ("write_kv", "paged_attention") and not isinstance(ops.kv_layout, PlainLayout):
        cases = _in_time(_spread(paged_attention), seconds)
        return _first_problem(
            (f"{case.name}, a cache of {dtype}", partial(_wrong_in_layout, case, ops, device, dtype))
            for case in cases
            for dtype in _cache_dtypes(case, ops)
        )
    problem = _op_problem(subject, ops, device, seconds)
    if subject == "linear" and problem is None and (packing := ops.packing) is not None:
        cases = _in_time(_spread(linear), seconds)
        problem = _first_problem(
            (f"{case.name}, as {form}", partial(_wrong_in_other_form, case, ops, packing, form))
            for case in cases
            for form in _other_forms(case, packing)
        )
    return problem


def without(ops: Ops, problems: dict[str, str]) -> Ops:
    """With the reference in the places of those ops, and without what has them inside."""
    problems = dict(problems)
    for group in TOGETHER:
        if wrong := [op for op in group if op in problems]:
            problems |= {op: f"{wrong[0]} is wrong, and they share a layout" for op in group if op not in problems}
    changes: dict[str, Any] = {}
    if FUSED in problems:
        changes |= {"fused": None, "joins_layers": False}
    if CAPTURED in problems:
        changes["capture"] = None
    if RECORDED in problems:
        changes |= {"record": None, "tokens_together": None}
    reference = reference_ops("")
    if wrong := [op for op in OP_NAMES if op in problems]:
        changes |= {op: getattr(reference, op) for op in wrong}
        changes |= {"fused": None, "record": None, "tokens_together": None, "joins_layers": False}
        changes["invariant"] = ops.invariant - frozenset(wrong)
        changes["logit_bytes"] = reference.logit_bytes  # the larger bound
        changes["providers"] = ops.providers | {op: Provider("reference", problems[op]) for op in wrong}
    if "linear" in problems:
        changes |= {"prepare": reference.prepare, "packing": None, "takes_stored_floats": False}
    if "write_kv" in problems:
        changes |= {"kv_layout": reference.kv_layout, "attention_bytes": reference.attention_bytes}
    return replace(ops, **changes)


@dataclass
class _Times:
    """Seconds that an op and the reference took, case by case: the shortest of all tries."""

    op: dict[str, float]
    reference: dict[str, float]

    def note(self, case: str, of_op: float, of_reference: float) -> None:
        self.op[case] = min(of_op, self.op.get(case, of_op))
        self.reference[case] = min(of_reference, self.reference.get(case, of_reference))

    @property
    def ratio(self) -> float:
        return sum(self.op.values()) / max(sum(self.reference.values()), 1e-9)


def _op_problem(op: str, ops: Ops, device: str, seconds: float) -> str | None:
    module = import_module(f"trivium.kernels.{op}")
    times = _Times({}, {})
    for _ in range(TRIES_OF_SLOW):
        problem = _first_problem(
            (case.name, partial(_wrong, op, case, module, ops, device, times))
            for case in _in_time(_spread(module), seconds)
        )
        if problem is not None or times.ratio < TOO_SLOW:
            return problem
    return f"{SLOW} {times.ratio:.0f} times as long as the reference, and {TOO_SLOW:g} times is the limit"


def _fused_problem(ops: Ops, device: str, seconds: float) -> str | None:
    reference = reference_ops("")
    allowed = fused_cases.TOLERANCE[torch.float32]

    def wrong(case: fused_cases.FusedCase) -> str | None:
        off = fused_cases.case_error(case, ops, reference, device)
        return f"off by {off:.2g} of the largest value, and {allowed:g} is allowed" if off > allowed else None

    drawn = fused_cases.cases(Generator().manual_seed(0), torch.float32)
    return _first_problem((case.name, partial(wrong, case)) for case in _in_time(drawn, seconds))


def _spread(module: Any) -> list[Case]:
    """An op's cases, fresh, in an order in which the first few are of all kinds: neighbours are much alike."""
    cases = list(module.cases(Generator().manual_seed(0)))
    return [case for first in range(CASE_STRIDE) for case in cases[first::CASE_STRIDE]]


def _in_time(cases: Iterable[Any], seconds: float) -> Iterator[Any]:
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


def _wrong(op: str, case: Case, module: Any, ops: Ops, device: str, times: _Times) -> str | None:
    arguments = mapped(copy.deepcopy(case.arguments), lambda tensor: tensor.to(device))
    tolerance = case.tolerance or module.TOLERANCE
    if op in PREPARED:
        tolerance = max(tolerance, PREPARED_TOLERANCE)
        arguments = tuple(
            _prepared(argument, ops) if place in PREPARED[op] else argument for place, argument in enumerate(arguments)
        )
    begun = time.perf_counter()
    want = module.reference(*case.arguments)
    between = time.perf_counter()
    got = getattr(ops, op)(*arguments)
    wanted, found = _tensors(want), _tensors(got)
    _read_back(found)
    times.note(case.name, time.perf_counter() - between, between - begun)
    if op not in PREPARED:  # and what it wrote into
        wanted, found = wanted + _tensors(case.arguments), found + _tensors(arguments)
    for right, given in zip(wanted, found, strict=True):
        if (problem := difference(given, right, tolerance)) is not None:
            return problem
    return None


def _read_back(results: Iterable[Tensor]) -> None:
    """So that a device that runs by itself has ended."""
    for result in results:
        if result.device.type != "cpu" and result.numel():
            result.flatten()[0].item()


def difference(given: Tensor, right: Tensor, tolerance: float) -> str | None:
    """What is wrong with `given`, if anything; `tolerance` is a fraction of the largest number in `right`."""
    if given.shape != right.shape:
        return f"a result of shape {list(given.shape)} where {list(right.shape)} is right"
    given, right = given.cpu().double(), right.cpu().double()
    if bool((given.isnan() & ~right.isnan()).any()):
        return "NaN where the reference has numbers"
    if not _is_near(given, right, tolerance):
        return f"numbers further from the reference than {tolerance:g} of the largest"
    return None


def _cache_dtypes(case: Case, ops: Ops) -> list[str]:
    """That the provider keeps such blocks in: the case's own, and int8."""
    _, keys, *_ = case.arguments
    _, block_size, _, head_dim = keys.shape
    there = ops.kv_layout.dtypes("float32", block_size, head_dim)
    return [dtype for dtype in (str(keys.dtype).removeprefix("torch."), "int8") if dtype in there]


def _wrong_in_layout(case: Case, ops: Ops, device: str, dtype: str) -> str | None:
    """Attention over a cache that the provider's own `write_kv` has filled, in a layout that only it can read."""
    q, keys, values, batch, scale, window, softcap = case.arguments
    num_blocks, block_size, num_heads, head_dim = keys.shape
    kv = KVSpec(block_size=block_size, groups=(), num_kv_heads=num_heads, head_dim=head_dim, dtype=dtype)
    held = ~keys.isnan().flatten(2).any(-1)  # [num_blocks, block_size]
    sizes = (num_heads, block_size, head_dim)
    laid = []
    for view in (ops.kv_layout.keys, ops.kv_layout.values):
        elements = getattr(torch, dtype)
        row = num_heads * block_size * kv.bytes_per_head // elements.itemsize
        blocks = torch.zeros((num_blocks, row), dtype=elements, device=device)
        blocks[~held.any(1)] = -1 if dtype == "int8" else float("nan")  # nobody may read there; such scales are NaN
        laid.append(view(blocks, *sizes))
    slots = held.flatten().nonzero().flatten()
    new_keys, new_values = (cache[held].float().to(device) for cache in (keys, values))
    ops.write_kv(new_keys, new_values, laid[0], laid[1], slots.to(device))
    there: AttentionBatch = mapped(batch, lambda tensor: tensor.to(device))
    got = ops.paged_attention(q.to(device), laid[0], laid[1], there, scale, window, softcap)
    want = paged_attention.reference(q, keys, values, batch, scale, window, softcap)
    tolerance = INT8_CACHE_TOLERANCE if dtype == "int8" else case.tolerance or paged_attention.TOLERANCE
    return difference(got, want, tolerance)


def _other_forms(case: Case, packing: Packing) -> list[str]:
    """Than its blocks, that a linear layer's weight can be packed in."""
    weight = case.arguments[1]
    forms = [packing.rows_type] if packing.takes_rows_of(weight.shape[1]) else []
    if not isinstance(weight, QuantizedTensor):
        return [*forms, packing.short_type] if weight.dtype == torch.bfloat16 else forms
    if weight.type in packing.units_types:
        forms.append(packing.units_types[weight.type])
    return forms


def _wrong_in_other_form(case: Case, ops: Ops, packing: Packing, form: str) -> str | None:
    x, weight, bias = case.arguments
    got = ops.linear(x, packing.pack_as(weight, form), bias)
    return difference(got, linear.reference(x, weight, bias), OTHER_FORM_TOLERANCE)


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
