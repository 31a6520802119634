"""A chip that is really the CPU: what a plugin must say, and where it may have a wish of its own.

Copy the package, and replace what `self._cpu` answers by what the chip's software answers. Import that software inside
the methods, never at the top: `static` and `detect` are asked of machines that do not have it.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from trivium.platform.contract import (
    CONTRACT_VERSION,
    Conformance,
    Detection,
    DetectionState,
    DeviceFacts,
    DTypes,
    Identity,
    ImportedFacts,
    KernelFacts,
    LoadFacts,
    PlatformLimits,
    Requirement,
    RunningFacts,
    Security,
    StaticFacts,
    SupportLevel,
    Variable,
    Versions,
    Visibility,
    declared,
    unknown,
)
from trivium.platform.cpu import CpuPlatform
from trivium.types.checks import Check
from trivium.types.decisions import Adjust, Decision, Refuse, Wish
from trivium.types.facts import Capabilities, ModelFacts

DTYPES = ("float32", "bfloat16")
BLOCK_TOKENS = 32  # what this chip's attention reads at once
LONGEST = 32768  # tokens of one sequence


class ExamplePlatform:
    name = "example"
    contract_version = CONTRACT_VERSION

    def __init__(self) -> None:
        self._cpu = CpuPlatform()

    def static(self) -> StaticFacts:
        return StaticFacts(
            versions=declared(Versions(CONTRACT_VERSION, "0.1.0", ">=0.1,<1"), "this file"),
            identity=declared(Identity("Example", "E", "Example E1", "cpu", "CPU", in_tree=False), "this file"),
            requires=declared((Requirement("torch", ">=2.11,<2.14"),), "this file"),
            visibility=declared(Visibility("TRIVIUM_EXAMPLE_VISIBLE", "numbers of devices, in order"), "this file"),
            env=declared((Variable("TRIVIUM_EXAMPLE_VISIBLE", "list", "all", "the devices to use"),), "this file"),
            security=declared(Security(False, False, (), ("/proc",)), "this file"),
            conformance=declared(
                Conformance(SupportLevel.SIMULATED, "tests/", "", "a CPU in its place"), "no such chip"
            ),
        )

    def detect(self) -> Detection:
        return Detection(DetectionState.PRESENT, "an example is everywhere")

    def imported(self) -> ImportedFacts:
        return ImportedFacts(
            dtypes=declared(DTypes(DTYPES, DTYPES, "float32", ()), "this file"), compile=unknown("nothing is compiled")
        )

    def probe(self) -> DeviceFacts:
        return self._cpu.probe()

    def capabilities(self) -> Capabilities:
        return replace(self._cpu.capabilities(), platform=self.name, name="Example E1", dtypes=DTYPES)

    def precheck(self) -> tuple[Check, ...]:
        return (Check("example-firmware", "ok", "1.0", ">= 1.0", ""),)

    def with_model(self, model: ModelFacts) -> LoadFacts:
        limits = PlatformLimits(max_model_len=min(model.max_position, LONGEST))
        return LoadFacts(limits=declared(limits, "this file"), features=unknown("no test was run in pairs"))

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        decisions: list[Decision] = []
        if wish.dtype == "float16":
            reason = "dtype float16 is not computed by Example E1"
            decisions.append(Refuse("dtype", reason, "--dtype bfloat16"))
        if wish.block_size != BLOCK_TOKENS:
            reason = f"attention on Example E1 reads {BLOCK_TOKENS} tokens at once"
            decisions.append(Adjust("block_size", wish.block_size, BLOCK_TOKENS, reason, "warn"))
        return tuple(decisions)

    def running(self) -> RunningFacts:
        return self._cpu.running()

    def kernel_facts(self) -> KernelFacts | None:
        return None  # the core's kernels for the device type "cpu" run

    def make_ops(self, wish: Wish, num_threads: int) -> Any | None:
        return None

    def open(self, num_threads: int) -> None:
        self._cpu.open(num_threads)

    def give_back_unused(self) -> None:
        self._cpu.give_back_unused()
