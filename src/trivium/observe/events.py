"""What happens to requests, as typed events. Whoever sees it emits it; metrics, traces and ledgers listen."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from trivium.observe.request_account import RequestAccount
from trivium.observe.request_end import RequestEnd
from trivium.types.grammar_stats import GrammarStats
from trivium.types.overload import AdmissionStats

log = logging.getLogger(__name__)


class RequestReceived(Struct, frozen=True):
    """A client asks for text; exactly one RequestEnded follows."""

    request_id: str


class PromptComputed(Struct, frozen=True):
    """The first token of a prompt's answer came; a request with several prompts has one for each."""

    request_id: str
    model: str  # its name, as in the next ones
    num_prompt_tokens: int
    num_cached_tokens: int


class FirstToken(Struct, frozen=True):
    """It was handed to the client: written to its connection where it streams."""

    request_id: str
    model: str
    seconds: float  # since the first byte of the request


class TextEncoded(Struct, frozen=True):
    """A text, or a pair of them, became a vector or a score; a request with several texts has one for each."""

    request_id: str
    model: str
    num_tokens: int
    num_cached_tokens: int


class TokensGenerated(Struct, frozen=True):
    """Tokens of one sequence came in one piece."""

    request_id: str
    model: str
    index: int
    count: int


class TokensHanded(Struct, frozen=True):
    """Tokens of one sequence, not its first, were handed to the client in one piece."""

    request_id: str
    model: str
    index: int
    count: int
    seconds: float  # since the piece before; 0 where they came with its first


class SequenceEnded(Struct, frozen=True):
    request_id: str
    model: str
    index: int
    reason: str  # "stop" or "length"


class RequestEnded(Struct, frozen=True):
    request_id: str
    end: RequestEnd
    model: str  # the name of the one that was to answer; "": it came to none
    is_awaited: bool  # by a client: it is no line of a batch and not made in the background
    account: RequestAccount


class EngineSample(Struct, frozen=True):
    """Where the engine stands, and what it has counted since its process began."""

    model: str  # its name
    running: int  # sequences
    waiting: int  # sequences
    free_blocks: int
    held_blocks: int
    cached_blocks: int  # held by nobody, kept for reuse
    preemptions: int
    evicted_blocks: int
    taken_blocks: int
    freed_blocks: int
    moved_bytes: int  # of blocks that were copied
    cached_tokens: int  # of prompts that began, as are the next two
    computed_tokens: int
    left_tokens: int
    recomputed_tokens: int
    steps: int
    step_seconds: float
    queue_seconds: float  # sum over requests, from their arrival to their first step
    planned_ahead: int  # positions, before their token was known
    discarded: int  # positions computed for sequences that had ended meanwhile
    held_back: dict[str, int]  # times a sequence could not be planned ahead, by reason
    failed_steps: int  # given up as a whole
    grammar: GrammarStats
    replayed_steps: int  # computed by a graph
    eager_steps: dict[str, int]  # computed op by op, by the reason
    demotions: dict[str, int]  # kernels that were left for slower ones, by "what: why"
    op_fallbacks: dict[str, int]  # calls that a provider handed to the reference, by "op: reason"
    admission: AdmissionStats  # who was put off, since the server began
    restarts: int  # of the process; the counts above begin again with each


Event = (
    RequestReceived
    | PromptComputed
    | FirstToken
    | TextEncoded
    | TokensGenerated
    | TokensHanded
    | SequenceEnded
    | RequestEnded
    | EngineSample
)
Listener = Callable[[Event], None]


def tell(listener: Listener, event: Event) -> None:
    """A listener that fails is a bug in it, and no matter of the request that it was told of."""
    try:
        listener(event)
    except Exception:
        log.exception("an event was not taken in: %s", type(event).__name__)
