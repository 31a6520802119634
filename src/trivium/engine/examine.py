"""The look before the start: the environment checked, the plan made, nothing loaded.

python -m trivium.engine.examine        its PreviewRequest on standard input, its Preview on standard output
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from trivium.engine.open_core import encoder_in
from trivium.engine.plan import asked, choose_platform, plan_start
from trivium.engine.plan_encoder import plan_encoder, report_encoder
from trivium.engine.preview import PlatformFacts, Preview, PreviewRequest
from trivium.engine.report import describe_platform, kernels_of, report_plan
from trivium.formats.home import default_root
from trivium.kernels.checks import (
    check_instruction_sets,
    check_native_kernels,
    check_torch_op,
    check_torch_tiles,
)
from trivium.kernels.facts import kernel_facts, planned_graph
from trivium.kernels.ops import Ops
from trivium.kernels.select import select_ops
from trivium.platform.contract import DeviceFacts, Platform, Requirement
from trivium.platform.machine_checks import ClockWatch
from trivium.platform.prechecks import common_prechecks, run_prechecks
from trivium.platform.probe import ask_in_child
from trivium.platform.requirements import CORE_REQUIREMENTS
from trivium.types.checks import Check
from trivium.types.decisions import Wish
from trivium.types.errors import TriviumError
from trivium.types.report import Refusal, Report


@dataclass(frozen=True)
class Foreseen:
    report: Report
    disk_bytes: int = 0  # that the start would like to have in the cache directory


def examine(request: PreviewRequest) -> Preview:
    clocks = ClockWatch()
    foreseen = _foresee(request) if request.has_model else Foreseen(_look_at_the_machine(request))
    report, options = foreseen.report, request.options

    def common(requirements: Sequence[Requirement]) -> tuple[Check, ...]:
        num_clients = options.max_waiting + options.max_num_seqs
        return common_prechecks(requirements, default_root(), foreseen.disk_bytes, num_clients, clocks)

    try:
        selection = choose_platform(options.device)
    except TriviumError as error:
        checks = common(CORE_REQUIREMENTS)
        return Preview(replace(report, refusal=report.refusal or _refusal(error), checks=checks))
    platform = selection.platform
    device = ask_in_child(platform.name, "probe")
    facts, why_not = _facts(platform, device.answer)
    checks = (
        *common(_requirements(platform)),
        *_checks(platform),
        *_failure("device-probe", device.failure),
        *_failure("platform-facts", why_not),
    )
    return Preview(replace(report, platform=describe_platform(selection), checks=checks), facts)


def foresee(request: PreviewRequest) -> Report:
    """What a start would come to, by making its plan."""
    return _foresee(request).report


def _foresee(request: PreviewRequest) -> Foreseen:
    try:
        if (encoder := encoder_in(request.options.model)) is not None:
            encoder_plan = plan_encoder(request.options, *encoder)
            return Foreseen(
                report_encoder(encoder_plan), encoder_plan.packed.room_wanted(encoder_plan.weights.own_bytes)
            )
        plan = plan_start(request.options)
        return Foreseen(report_plan(plan, request.context), plan.packed.room_wanted(plan.weights.own_bytes))
    except TriviumError as error:
        return Foreseen(Report(refusal=_refusal(error)))


def _refusal(error: TriviumError) -> Refusal:
    return Refusal(type(error).__name__, str(error))


def _look_at_the_machine(request: PreviewRequest) -> Report:
    try:
        ops = _ops_of(choose_platform(request.options.device).platform)
    except TriviumError as error:
        return Report(refusal=_refusal(error))
    return Report(kernels=kernels_of(ops, ops.providers), graph=planned_graph(ops))


def _facts(platform: Platform, device: DeviceFacts | None) -> tuple[PlatformFacts | None, str]:
    """With why there are none: a plugin may fail at any question."""
    try:
        facts = PlatformFacts(
            static=platform.static(),
            imported=platform.imported(),
            device=device,
            kernels=platform.kernel_facts() or kernel_facts(_ops_of(platform)),
            running=platform.running(),
        )
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return facts, ""


def _ops_of(platform: Platform) -> Ops:
    capabilities = platform.capabilities()
    own = asked(platform, "make_ops", platform.make_ops, Wish(), capabilities.num_threads)
    return own or select_ops("auto", capabilities.device, capabilities.num_threads, capabilities.dtypes[0])


def _requirements(platform: Platform) -> list[Requirement]:
    """The platform's, and the core's where it says nothing else."""
    theirs = platform.static().requires.value or ()
    named = {requirement.component for requirement in theirs}
    return [*theirs, *(requirement for requirement in CORE_REQUIREMENTS if requirement.component not in named)]


def _checks(platform: Platform) -> tuple[Check, ...]:
    """Those of the platform, and of the kernels."""
    answered = ask_in_child(platform.name, "precheck")
    capabilities = platform.capabilities()
    kernels: list[Callable[[], Check]] = [check_torch_op]
    if capabilities.device == "cpu":
        of_processor = partial(check_instruction_sets, frozenset(capabilities.features))
        kernels += [check_torch_tiles, check_native_kernels, of_processor]
    return (
        *(answered.answer or ()),
        *_failure("platform-checks", answered.failure),
        *run_prechecks(kernels),
    )


def _failure(name: str, failure: str) -> tuple[Check, ...]:
    remedy = "mend or uninstall the platform's software, or choose another with --device"
    return (Check(name, "fail", failure, "an answer", remedy),) if failure else ()


def main() -> None:
    # Whatever else is printed, by whatever library, goes to standard error.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=PreviewRequest)
    with open(answers, "wb") as out:
        out.write(msgspec.json.encode(examine(request)))


if __name__ == "__main__":
    main()
