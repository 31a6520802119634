"""What a platform states, in which phase it can be asked, and how the core takes it. Platforms state facts; the engine decides.

Anything in this file that a plugin can see is the contract: a change of its shape changes CONTRACT_VERSION, and the
version before stays served (`contract_v1`). Facts are grouped by the phase in which they can be answered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from trivium.types.checks import Check
from trivium.types.decisions import Decision, Wish
from trivium.types.facts import Capabilities, ModelFacts

CONTRACT_VERSION = 2
SERVED_VERSIONS = (1, 2)

T = TypeVar("T")


class Phase(StrEnum):
    """When a fact can be had. Each phase may use what the ones before it may."""

    STATIC = "S"  # the vendor's software is not imported
    IMPORTED = "I"  # it is, and no device was touched
    DEVICE = "D"  # the device is probed; in a process of its own, since that may crash or hang
    MODEL = "L"  # the model's shape is known
    RUNNING = "R"


class Source(StrEnum):
    DECLARED = "declared"  # somebody wrote it down
    PROBED = "probed"  # the machine was asked
    MEASURED = "measured"  # it was done, and the result looked at


class Answer(Struct, Generic[T], frozen=True):
    value: T | None  # None: unknown, which counts as no
    source: Source
    reason: str

    @property
    def is_yes(self) -> bool:
        return bool(self.value)


def declared(value: T, reason: str) -> Answer[T]:
    return Answer(value, Source.DECLARED, reason)


def probed(value: T, reason: str) -> Answer[T]:
    return Answer(value, Source.PROBED, reason)


def measured(value: T, reason: str) -> Answer[T]:
    return Answer(value, Source.MEASURED, reason)


def unknown(reason: str) -> Answer[Any]:
    return Answer(None, Source.DECLARED, reason)


# Phase S


class Versions(Struct, frozen=True):
    contract: int
    plugin: str
    core: str  # the versions of trivium it was made for, as pip writes a range: ">=0.1,<0.3"


class Identity(Struct, frozen=True):
    vendor: str
    family: str
    product: str  # as it is sold
    device_type: str  # torch's: cpu, cuda, npu, mlu, musa …
    dispatch_key: str  # torch's: CPU, CUDA, PrivateUse1 …
    in_tree: bool


class DetectionState(StrEnum):
    PRESENT = "present"
    ABSENT = "absent"
    BROKEN = "broken"  # here, and cannot be used


class Detection(Struct, frozen=True):
    state: DetectionState
    reason: str

    @property
    def present(self) -> bool:
        return self.state is DetectionState.PRESENT


class Requirement(Struct, frozen=True):
    """One row of the version table. Versions are as the component itself writes them."""

    component: str  # "python", "glibc", or the name of a package
    wanted: str  # a range as pip writes it; empty: any
    tested: tuple[str, ...] = ()
    known_bad: tuple[str, ...] = ()
    needed: bool = True  # else it only makes things faster


class Visibility(Struct, frozen=True):
    variable: str | None  # the environment variable that hides devices from a process
    numbering: str  # how the numbers that this process sees belong to the machine's own


class Variable(Struct, frozen=True):
    """An environment variable that the platform reads."""

    name: str
    type: str
    default: str
    meaning: str
    conflicts: tuple[str, ...] = ()


class Security(Struct, frozen=True):
    opens_sockets: bool
    uses_network: bool
    loads_native_code: tuple[str, ...]
    reads: tuple[str, ...]  # files and directories, besides the model


class SupportLevel(StrEnum):
    CONFORMANT = "conformant"  # the suite was run on the hardware
    SIMULATED = "simulated"  # it was run on recorded or emulated answers
    DECLARED = "declared"  # nothing was run


class Conformance(Struct, frozen=True):
    level: SupportLevel
    suite: str  # which tests
    date: str
    hardware: str


class StaticFacts(Struct, frozen=True, kw_only=True):
    versions: Answer[Versions]
    identity: Answer[Identity]
    requires: Answer[tuple[Requirement, ...]]
    visibility: Answer[Visibility]
    env: Answer[tuple[Variable, ...]]
    security: Answer[Security]
    conformance: Answer[Conformance]


# Phase I


class DTypes(Struct, frozen=True):
    compute: tuple[str, ...]  # of activations; the preferred first, which is the order of falling back too
    storage: tuple[str, ...]  # of weights
    accumulate: str
    fp8: tuple[str, ...]  # flavours; empty: none


class Compile(Struct, frozen=True):
    backend: str
    cached: bool  # whether what was compiled serves the next start too
    expected_seconds: float  # at a first start


class ImportedFacts(Struct, frozen=True, kw_only=True):
    dtypes: Answer[DTypes]
    compile: Answer[Compile]


# Phase D


class Device(Struct, frozen=True):
    index: int  # as this process counts
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    integrated: bool  # its memory is the host's
    compute_units: int
    features: tuple[str, ...]  # by name, never by another vendor's numbers
    numa_nodes: int
    health: str


class MemoryModel(Struct, frozen=True):
    dedicated: bool  # to whoever takes the device
    unified: bool  # host and device share addresses
    pinned: bool  # the host's pages can be held in place for copies
    reserved_bytes: int  # by the runtime, once the device is open
    can_sleep: bool  # weights can be put aside and come back
    out_of_memory: str  # how it shows


class Collectives(Struct, frozen=True):
    backend: str
    ops: tuple[str, ...]
    timeout_seconds: float


class Transfer(Struct, frozen=True):
    libraries: tuple[str, ...]
    memory: tuple[str, ...]


class DeviceFacts(Struct, frozen=True, kw_only=True):
    inventory: Answer[tuple[Device, ...]]
    memory_model: Answer[MemoryModel]
    collectives: Answer[Collectives]
    transfer: Answer[Transfer]


class OpSupport(Struct, frozen=True):
    op: str
    implementation: str
    reason: str  # why this one
    deterministic: bool
    batch_invariant: bool  # a row's result does not depend on the rows beside it
    graph_safe: bool


class QuantizationSupport(Struct, frozen=True):
    scheme: str
    kernel: str
    native: bool  # computed as stored; else expanded first


class AttentionSupport(Struct, frozen=True):
    kinds: tuple[str, ...]
    head_sizes: str  # a rule in words
    block_sizes: str
    kv_dtypes: tuple[str, ...]  # with a block of 16 tokens and heads of 64, the best first
    resumes_prefixes: bool


class KVLayoutForm(Struct, frozen=True):
    form: str  # the id under which blocks can be handed to another engine: equal ids, equal bytes
    rule: str


class GraphSupport(Struct, frozen=True):
    modes: tuple[str, ...]  # full, decode
    limited_by: str
    breaks_at: tuple[str, ...]  # what cannot be recorded


class Determinism(Struct, frozen=True):
    proven: tuple[str, ...]  # batch, chunk, run
    varies: str  # what may still differ


class LadderRung(Struct, frozen=True):
    name: str
    enters_if: str
    leaves_if: str


class KernelFacts(Struct, frozen=True, kw_only=True):
    """Of those who provide the ops: the core for its own device types, a plugin for what it brings."""

    ops: Answer[tuple[OpSupport, ...]]
    quantization: Answer[tuple[QuantizationSupport, ...]]
    attention: Answer[AttentionSupport]
    kv_layout: Answer[KVLayoutForm]
    graph: Answer[GraphSupport]
    determinism: Answer[Determinism]
    ladder: Answer[tuple[LadderRung, ...]]


# Phase L


class PlatformLimits(Struct, frozen=True):
    """None: the platform sets no limit."""

    max_model_len: int | None = None
    max_sequences: int | None = None
    max_batch_tokens: int | None = None
    max_adapters: int | None = None
    max_graphs: int | None = None


class FeaturePair(Struct, frozen=True):
    first: str
    second: str
    together: str  # yes, partial, no, untested
    shown_by: str  # the test, or the reason


class LoadFacts(Struct, frozen=True, kw_only=True):
    limits: Answer[PlatformLimits]
    features: Answer[tuple[FeaturePair, ...]]


# Phase R


class ErrorAction(Struct, frozen=True):
    code: str  # part of the vendor's message or number
    action: str  # retry, fail_request, demote, restart, drain
    sentence: str


class Telemetry(Struct, frozen=True):
    readings: tuple[str, ...]  # energy, power, temperature, clocks, utilisation …
    source: str


class Profiling(Struct, frozen=True):
    activities: tuple[str, ...]
    trace: str


class RunningFacts(Struct, frozen=True, kw_only=True):
    validates_requests: Answer[bool]  # whether bad indices are refused before the device sees them
    errors: Answer[tuple[ErrorAction, ...]]
    telemetry: Answer[Telemetry]
    profiling: Answer[Profiling]


PHASES: dict[type[Struct], Phase] = {
    StaticFacts: Phase.STATIC,
    ImportedFacts: Phase.IMPORTED,
    DeviceFacts: Phase.DEVICE,
    KernelFacts: Phase.DEVICE,
    LoadFacts: Phase.MODEL,
    RunningFacts: Phase.RUNNING,
}


class Platform(Protocol):
    name: str
    contract_version: int

    def static(self) -> StaticFacts: ...

    def detect(self) -> Detection:
        """Is it here? Without initialising a device; may be asked again and again, before and after a fork."""

    def imported(self) -> ImportedFacts: ...

    def probe(self) -> DeviceFacts:
        """Asked in a process of its own."""

    def capabilities(self) -> Capabilities:
        """What decisions are made from. Takes no memory of the device."""

    def precheck(self) -> tuple[Check, ...]:
        """Of what only this platform needs, in the order in which to mend it."""

    def with_model(self, model: ModelFacts) -> LoadFacts: ...

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        """Pure: the same wish, the same decisions. What is not named is kept."""

    def running(self) -> RunningFacts: ...

    def kernel_facts(self) -> KernelFacts | None:
        """None: the core's own kernels for the device type run, and answer."""

    def make_ops(self, wish: Wish, num_threads: int) -> Any | None:
        """A trivium.kernels.ops.Ops of the platform's own, or None as above."""

    def open(self, num_threads: int) -> None:
        """Take the device for this process."""

    def give_back_unused(self) -> None:
        """Memory that this process keeps for reuse goes back to the device, so that what is free can be read."""
