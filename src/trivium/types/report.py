"""What will run, or why not, and beside it what truly happened: one object for `doctor`, the start, and /v1/report."""

from __future__ import annotations

from msgspec import Struct

from trivium.types.checks import Check
from trivium.types.facts import Adjustment
from trivium.types.start_progress import StagePassed


class Refusal(Struct, frozen=True):
    kind: str  # the error's class
    reason: str


class KernelChoice(Struct, frozen=True):
    op: str
    kernel: str
    reason: str


class MemoryUse(Struct, frozen=True):
    what: str
    planned_bytes: int
    note: str
    used_bytes: int | None = None  # counted once it is there


class Room(Struct, frozen=True):
    tokens: int  # that the KV cache holds in all
    context: int  # tokens of one request, for which `requests` is told
    requests: int  # of that length at once


class ModelReport(Struct, frozen=True):
    path: str
    family: str
    weights: str  # the type of most
    dtype: str  # of activations
    kv_cache_dtype: str
    max_model_len: int  # tokens
    block_size: int  # tokens
    num_blocks: int


class ConsideredPlatform(Struct, frozen=True):
    name: str
    state: str  # present, absent, broken
    reason: str


class PlatformReport(Struct, frozen=True):
    name: str
    device: str
    product: str
    contract: int  # the version that the platform speaks
    support: str  # conformant, simulated, declared, unknown
    considered: tuple[ConsideredPlatform, ...]


class Happened(Struct, frozen=True):
    """Once the engine runs."""

    kernels: tuple[KernelChoice, ...]  # as they are held by the model
    graph: str
    packed: str  # where packed weights came from and are kept
    resident_bytes: int  # of the process
    resident_before_bytes: int  # before the model was loaded
    demotions: dict[str, int] = {}  # kernels that were left for slower ones, at the start or since, by "what: why"
    start: tuple[StagePassed, ...] = ()  # where its time went, once its libraries were imported
    compiled_ahead: str = ""  # of kernels, beside the start
    op_fallbacks: dict[str, int] = {}  # calls so far that went to the reference against the plan, by op and reason


class Report(Struct, frozen=True, kw_only=True):
    checks: tuple[Check, ...] = ()
    platform: PlatformReport | None = None  # None: refused before one was chosen
    model: ModelReport | None = None  # None: refused before it was known, or none was asked for
    kernels: tuple[KernelChoice, ...] = ()  # of the ops that the model uses
    graph: str = ""  # what is planned
    compiles: str = ""  # what is made for this machine at a first start, and for how long
    memory: tuple[MemoryUse, ...] = ()
    room: Room | None = None
    fallbacks: tuple[str, ...] = ()  # what runs slower than it could here, and why
    adjustments: tuple[Adjustment, ...] = ()
    refusal: Refusal | None = None
    happened: Happened | None = None

    @property
    def runs(self) -> bool:
        return self.refusal is None and not any(check.state == "fail" for check in self.checks)
