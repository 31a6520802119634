"""What the engine says back about a sequence after each step that moved it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from trivium.types.account import Account
from trivium.types.step import TokenLogprobs


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Delta(Struct, frozen=True, omit_defaults=True):
    """News of one sequence. The last one of a sequence carries a finish reason, and there is exactly one such."""

    request_id: str
    index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of prompt tokens 1 …, in order, over as many deltas as it takes
    num_cached_tokens: int = 0  # prompt tokens whose keys and values were found; told with the first tokens
    finish_reason: FinishReason | None = None
    stop_token: int | None = None  # the stop token that ended it; it is the last of `tokens`
    error: str | None = None
    is_requests_fault: bool = False  # of an error: the same request would fail anywhere
    pooled: bytes = b""  # float32 [H]: the hidden state of the prompt's last token, where it was asked for
    account: Account | None = None  # where the sequence's time went; comes with the finish reason
