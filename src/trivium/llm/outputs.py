"""What a request gives back, in the shape that vLLM's users know."""

from __future__ import annotations

from msgspec import Struct

from trivium.types.account import Account

TokenLogprobDict = dict[int, "Logprob"]  # the sampled token first, then the likeliest in order


class Logprob(Struct, frozen=True):
    logprob: float
    rank: int | None = None  # 1 is the likeliest
    decoded_token: str | None = None


class CompletionDelta(Struct, frozen=True):
    """What is new in a completion since the output before."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobDict, ...] = ()  # one for each of `token_ids` where they were asked for

    def __bool__(self) -> bool:
        return bool(self.text or self.token_ids)


class CompletionOutput(Struct, frozen=True):
    """One of the n answers, as it stands now; `delta` is what was added to it since the output before.

    Text may lag behind the tokens: bytes that are not yet a character, and what might begin a stop string, are held
    back until they are decided. At the end nothing is held back.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None  # sum over `token_ids` where logprobs were asked for
    logprobs: list[TokenLogprobDict] | None = None
    finish_reason: str | None = None  # "stop", "length", "abort"
    stop_reason: int | str | None = None  # the stop token or string that ended it; None for the model's own end token
    delta: CompletionDelta = CompletionDelta()

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestMetrics(Struct, frozen=True):
    """Seconds of CLOCK_MONOTONIC, as seen by the process that asked."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    accounts: tuple[Account, ...] = ()  # where the time of its sequences went, of those that the engine ended


class RequestOutput(Struct, frozen=True):
    """All n completions of a request as they stand now, by index."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobDict | None] | None = None  # entry 0 is None: nothing predicts the first token
    num_cached_tokens: int = 0  # prompt tokens whose keys and values were found in the cache


class EmbeddingOutput(Struct, frozen=True):
    """What a model makes of a prompt: a decoder the state of its last token, after the final norm; an encoder its pooled
    state, or a score for each of its labels."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    embedding: bytes  # float32, little-endian
    num_cached_tokens: int = 0


class BeamSearchSequence(Struct, frozen=True):
    tokens: list[int]  # the prompt, and what was found
    logprobs: list[TokenLogprobDict]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class BeamSearchOutput(Struct, frozen=True):
    sequences: list[BeamSearchSequence]  # the best first
