"""The look before the start: the environment checked, the plan made, nothing loaded.

python -m trivium.engine.examine        its PreviewRequest on standard input, its Preview on standard output
"""

from __future__ import annotations

import os
import sys

import msgspec
from msgspec.structs import replace

from trivium.engine.open_core import encoder_in
from trivium.engine.plan import choose_platform, plan_start
from trivium.engine.plan_encoder import plan_encoder, report_encoder
from trivium.engine.preview import PlatformFacts, Preview, PreviewRequest
from trivium.engine.report import describe_platform, report_plan
from trivium.formats.home import default_root
from trivium.kernels.checks import check_instruction_sets, check_native, check_torch
from trivium.kernels.facts import kernel_facts, planned_graph
from trivium.kernels.ops import Ops
from trivium.kernels.select import select_ops
from trivium.platform.contract import Platform
from trivium.platform.prechecks import common_prechecks, run_prechecks
from trivium.platform.probe import ask_in_child
from trivium.platform.requirements import CORE_REQUIREMENTS
from trivium.types.checks import Check
from trivium.types.decisions import Wish
from trivium.types.errors import TriviumError
from trivium.types.report import KernelChoice, Refusal, Report


def examine(request: PreviewRequest) -> Preview:
    try:
        platform = choose_platform(request.options.device).platform
    except TriviumError as error:
        checks = common_prechecks(CORE_REQUIREMENTS, default_root())
        return Preview(Report(refusal=_refusal(error), checks=checks))
    report = foresee(request) if request.has_model else _report_without_model(request)
    device = ask_in_child(platform.name, "probe")
    facts = PlatformFacts(
        static=platform.static(),
        imported=platform.imported(),
        device=device.answer,
        kernels=platform.kernel_facts() or kernel_facts(_ops_of(platform)),
        running=platform.running(),
    )
    return Preview(replace(report, checks=_checks(platform) + _failure("device-probe", device.failure)), facts)


def foresee(request: PreviewRequest) -> Report:
    """What a start would come to, by making its plan."""
    try:
        if (encoder := encoder_in(request.options.model)) is not None:
            return report_encoder(plan_encoder(request.options, *encoder))
        return report_plan(plan_start(request.options), request.context)
    except TriviumError as error:
        return Report(refusal=_refusal(error))


def _refusal(error: TriviumError) -> Refusal:
    return Refusal(type(error).__name__, str(error))


def _report_without_model(request: PreviewRequest) -> Report:
    selection = choose_platform(request.options.device)
    ops = _ops_of(selection.platform)
    kernels = tuple(KernelChoice(op, one.name, one.reason) for op, one in ops.providers.items())
    return Report(platform=describe_platform(selection), kernels=kernels, graph=planned_graph(ops))


def _ops_of(platform: Platform) -> Ops:
    capabilities = platform.capabilities()
    own = platform.make_ops(Wish(), capabilities.num_threads)
    return own or select_ops("auto", capabilities.device, capabilities.num_threads, capabilities.dtypes[0])


def _checks(platform: Platform) -> tuple[Check, ...]:
    """Those of the machine, of the platform, and of the kernels, in this order."""
    requirements = platform.static().requires.value or CORE_REQUIREMENTS
    asked = ask_in_child(platform.name, "precheck")
    capabilities = platform.capabilities()
    kernels = [check_torch]
    if capabilities.device == "cpu":
        kernels += [check_native, lambda: check_instruction_sets(frozenset(capabilities.features))]
    return (
        *common_prechecks(requirements, default_root()),
        *(asked.answer or ()),
        *_failure("platform-checks", asked.failure),
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
