"""What the client and the engine process say to each other: one msgpack struct in one frame, never pickle."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from trivium.config.options import EngineOptions
from trivium.schedule.snapshot import Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types import errors
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import InvalidRequestError, NeverFitsError, OverloadedError, TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.grammar_stats import GrammarStats
from trivium.types.request import Cancel, Request
from trivium.types.start_progress import StartProgress

# --- to the engine


class Launch(Struct, frozen=True):
    """What the process reads from its standard input before anything else."""

    options: EngineOptions
    endpoint: str  # where the client listens
    parent_pid: int
    core: str  # "module:name" of what makes one from the options


class Drain(Struct, frozen=True, tag="drain"):
    """Take no new requests, finish those in hand, then end."""


class Shutdown(Struct, frozen=True, tag="shutdown"):
    """End now."""


class GetStats(Struct, frozen=True, tag="get_stats"):
    ticket: int  # comes back in the answer
    with_snapshot: bool = False


# --- from the engine


class Ready(Struct, frozen=True, tag="ready"):
    card: ModelCard


class Starting(Struct, frozen=True, tag="starting"):
    """At the begin of each stage of a start, and a few times a second within one that is counted."""

    progress: StartProgress


class ErrorReport(Struct, frozen=True, omit_defaults=True):
    """A TriviumError on the wire: enough that the other side raises the same one."""

    kind: str  # the class's name
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float = 0.0
    numbers: tuple[int, int, int] = (0, 0, 0)  # of a NeverFitsError: prompt tokens, new tokens, limit


class StartFailed(Struct, frozen=True, tag="start_failed"):
    error: ErrorReport


class Deltas(Struct, frozen=True, tag="deltas"):
    deltas: list[Delta]


class Refused(Struct, frozen=True, tag="refused"):
    request_id: str
    error: ErrorReport


class Stats(Struct, frozen=True, tag="stats"):
    """Sent twice a second and when asked. Times are seconds of CLOCK_MONOTONIC."""

    scheduler: SchedulerStats
    num_steps: int
    step_seconds: float  # all steps together
    last_step: float  # when the last step ended
    last_turn: float  # when the loop last came round
    longest_step: float = 0.0
    execution: ExecutionStats = ExecutionStats()
    grammar: GrammarStats = GrammarStats()
    malformed_frames: int = 0
    ticket: int | None = None
    snapshot: Snapshot | None = None  # where it was asked for


class Fault(Struct, frozen=True, tag="fault"):
    """A step failed as a whole."""

    message: str
    is_final: bool = False  # a process started in its place would fail too


class Drained(Struct, frozen=True, tag="drained"):
    """The last request in hand has ended."""


# A process that ends of itself says why (StartFailed, Fault, Drained) and waits for a Shutdown in answer: so its last
# messages are read before its end is seen.


ToEngine = Request | Cancel | Drain | Shutdown | GetStats
FromEngine = Starting | Ready | StartFailed | Deltas | Refused | Stats | Fault | Drained

_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TriviumError)
}
_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine | Launch) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(frame: bytes) -> ToEngine | None:
    """None for a frame that is not a message."""
    try:
        return _to_engine.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode_from_engine(frame: bytes) -> FromEngine | None:
    try:
        return _from_engine.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def report_error(error: TriviumError) -> ErrorReport:
    kind, message = type(error).__name__, str(error)
    match error:
        case NeverFitsError():
            numbers = (error.num_prompt_tokens, error.num_new_tokens, error.limit)
            return ErrorReport(kind, message, param=error.param, code=error.code, numbers=numbers)
        case InvalidRequestError():
            return ErrorReport(kind, message, param=error.param, code=error.code)
        case OverloadedError():
            return ErrorReport(kind, message, retry_after=error.retry_after)
        case _:
            return ErrorReport(kind, message)


def restore_error(report: ErrorReport) -> TriviumError:
    match report.kind:
        case "NeverFitsError":
            return NeverFitsError(*report.numbers, param=report.param or "prompt")
        case "InvalidRequestError":
            return InvalidRequestError(report.message, param=report.param, code=report.code)
        case "OverloadedError":
            return OverloadedError(report.message, retry_after=report.retry_after)
        case _:
            return _KINDS.get(report.kind, TriviumError)(report.message)
