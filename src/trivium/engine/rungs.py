"""The fallback ladder: which tables of ops could run here, best first, and the first that tells no lies.

Rungs of the core's own kernels on a CPU are the instruction sets that run, then the reference; a platform's own ops are one
rung above the reference. Where every rung has something wrong with it, the best one runs with the reference in the places
of what is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from trivium.engine.kept_verdicts import KeptVerdicts, build_of_native
from trivium.engine.trial import WHOLE, TrialRequest, Verdict, try_rung
from trivium.kernels.facts import REFERENCE
from trivium.kernels.kv_layout import PlainLayout
from trivium.kernels.native import usable_instruction_sets
from trivium.kernels.ops import OP_NAMES, Ops, Provider
from trivium.kernels.select import native_ops, reference_ops, select_ops
from trivium.kernels.verify import without
from trivium.platform.select import load_platform
from trivium.types.errors import ConfigError

log = logging.getLogger(__name__)

NATIVE = "native"


@dataclass(frozen=True)
class Rung:
    name: str  # "native avx2", …
    request: TrialRequest


@dataclass(frozen=True)
class Standing:
    """Where the ladder was left."""

    ops: Ops
    problems: tuple[str, ...] = ()  # one line for each thing that will not be used


def make_rung_ops(request: TrialRequest) -> Ops:
    if request.platform is not None:
        brought = load_platform(request.platform).make_ops(request.wish, request.num_threads)
        if not isinstance(brought, Ops):
            raise ConfigError(f"the platform {request.platform!r} gave a {type(brought).__name__} as its ops")
        return brought
    return select_ops(
        request.wish.kernels,  # type: ignore[arg-type]
        request.device,
        request.num_threads,
        request.dtype,
        request.instruction_set,
    )


def stand(request: TrialRequest, ops: Ops, root: Path, machine: str) -> Standing:
    """`ops` is the table that `request` asks for. Verdicts of the core's own kernels are kept under `root`, since they stay
    as long as the build and the machine do; a platform's ops are tried at every start."""
    rungs = _rungs(request, ops)
    if not rungs:
        return Standing(ops)
    if request.platform is not None:
        return climb(rungs, lambda rung: try_rung(rung.request), lambda rung: ops)
    kept = KeptVerdicts(root, build_of_native(machine))

    def attempt(rung: Rung) -> list[Verdict]:
        """Of all ops, so that one trial serves every model; of those that this one calls, what was found is told."""
        verdicts = kept.of(replace(rung.request, used=OP_NAMES), try_rung)
        return [verdict for verdict in verdicts if verdict.subject not in OP_NAMES or verdict.subject in request.used]

    return climb(rungs, attempt, lambda rung: ops if rung is rungs[0] else make_rung_ops(rung.request))


def climb(rungs: Sequence[Rung], attempt: Callable[[Rung], Iterable[Verdict]], make: Callable[[Rung], Ops]) -> Standing:
    """`rungs` are in order, best first, and at least one."""
    lines: list[str] = []
    of_best: dict[str, str] = {}
    for rung in rungs:
        found = {verdict.subject: verdict.problem for verdict in attempt(rung) if verdict.problem is not None}
        if not found:
            return Standing(make(rung), tuple(lines))
        if WHOLE in found:  # nothing is known of it, nor will be of the others
            return Standing(make(rung), (*lines, f"{WHOLE}: {found[WHOLE]}; {rung.name} runs untried"))
        lines += [f"{rung.name}: not used, since {what}: {why}" for what, why in found.items()]
        of_best = of_best or found
    log.warning("the reference runs in place of %s of %s", ", ".join(of_best), rungs[0].name)
    return Standing(without(make(rungs[0]), of_best), tuple(f"{what}: {why}" for what, why in of_best.items()))


def rung_below(ops: Ops, num_threads: int) -> Ops | None:
    """The next table of ops that reads the same weights and caches; None: there is none, or nothing to compare with."""
    name = ops.providers["linear"].name
    if name.startswith(NATIVE) and ops.packing is not None:
        sets = usable_instruction_sets()
        place = sets.index(name.removeprefix(f"{NATIVE} "))
        return native_ops(sets[place - 1], num_threads, "the rung below") if place else None
    is_plain = ops.packing is None and ops.fused is None and isinstance(ops.kv_layout, PlainLayout)
    is_reference = all(provider.name == REFERENCE for provider in ops.providers.values())
    return reference_ops("the rung below") if is_plain and not is_reference else None


def demoted(ops: Ops, subject: str, why: str, num_threads: int) -> Ops:
    """Without what was found wrong in service. Native ops fall together, and keep their graph."""
    below = rung_below(ops, num_threads)
    if subject in OP_NAMES and below is not None and below.packing is not None:
        return below
    return without(ops, {subject: why})


def refuse_below(rung: str | None, ops: Ops, used: Iterable[str], problems: Sequence[str]) -> None:
    """Raises ConfigError where an op would run below the rung that was asked for: one of `native`, an instruction set, or a
    provider's own name."""
    if rung is None:
        return
    order = _order()
    if rung not in order and rung not in {one.name for one in ops.providers.values()}:
        raise ConfigError(f"strict: there is no rung {rung!r} here; there are {', '.join(order)}")
    below: dict[Provider, list[str]] = {}
    for op in used:
        provider = ops.providers[op]
        if provider.reason != "the fastest here" and not _reaches(provider.name, rung, order):
            below.setdefault(provider, []).append(op)
    if below:
        whys = [f"{', '.join(names)} would run on {one.name} ({one.reason})" for one, names in below.items()]
        raise ConfigError(f"strict {rung}: " + "; ".join([*whys, *problems]))


def refuse_by_batch(ops: Ops, used: Iterable[str], problems: Sequence[str]) -> None:
    """Raises ConfigError where an op of a deterministic engine would give a row other bits in another batch."""
    if by_batch := [op for op in used if op not in ops.invariant]:
        who = ((op, ops.providers[op]) for op in by_batch)
        why = ", ".join(f"{op} ({provider.name}: {provider.reason})" for op, provider in who)
        raise ConfigError("; ".join([f"deterministic: sums depend on the batch in {why}", *problems]))


def _order() -> list[str]:
    """Of the core's rungs on a CPU, lowest first."""
    try:
        return [REFERENCE, NATIVE, *usable_instruction_sets()]
    except ConfigError:
        return [REFERENCE, NATIVE]


def _reaches(provider: str, rung: str, order: list[str]) -> bool:
    if provider == rung:
        return True
    name = provider.removeprefix(f"{NATIVE} ")
    if rung not in order or name not in order:
        return rung == REFERENCE
    return order.index(name) >= order.index(rung)


def _rungs(request: TrialRequest, ops: Ops) -> list[Rung]:
    """Kernels that are compiled at their first use are not among them: that would take longer than the start itself."""
    name = next((one.name for one in ops.providers.values() if one.name != REFERENCE), REFERENCE)
    if request.platform is not None:
        return [Rung(name, request)]
    if not name.startswith(NATIVE):
        return []
    chosen = name.removeprefix(f"{NATIVE} ")
    sets = usable_instruction_sets()[::-1]
    lower = sets[sets.index(chosen) + 1 :] if request.instruction_set is None else []
    return [Rung(f"{NATIVE} {one}", replace(request, instruction_set=one)) for one in (chosen, *lower)]
