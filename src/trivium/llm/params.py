"""How to draw and end the answers to a prompt, in the field names that vLLM's users know. Checked when made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.llm.structured import StructuredOutputsParams, read_structured_outputs
from trivium.types.errors import InvalidRequestError

MAX_N = 1024
MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class ThinkingLimit:
    """The most tokens that reasoning may take, and what it stands between."""

    max_tokens: int
    begin: str | None  # None: the prompt has begun it
    end: str
    goes_on: str = ""  # what leads from the end to the answer


@dataclass
class SamplingParams:
    """Sampling of one request. A field set after construction is checked when the request is sent."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1 are off
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None  # None and -1: drawn for each request
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: as many as the context holds
    min_tokens: int = 0
    logprobs: int | None = None  # 0: of the sampled token; k: and of the k likeliest; -1: of all
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_special_tokens: Sequence[int] = ()  # stay in the text though others are skipped
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None  # keep only the last k tokens of the prompt; -1: as many as fit
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None
    thinking: ThinkingLimit | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None  # the form that answers must have

    def __post_init__(self) -> None:
        self.check()

    def clone(self) -> SamplingParams:
        return dataclasses.replace(self)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def check(self) -> None:
        """Raise InvalidRequestError, which names the field, its value and what it may be, for the first that is wrong."""
        _check_int("n", self.n, 1, MAX_N)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_int("top_k", self.top_k, -1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("typical_p", self.typical_p, 0.0, 1.0, open_low=True)
        _check_int("seed", self.seed, -(2**63), MAX_SEED, optional=True)
        _check_int("max_tokens", self.max_tokens, 1, optional=True)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _wrong("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        _check_int("logprobs", self.logprobs, -1, optional=True)
        _check_int("prompt_logprobs", self.prompt_logprobs, -1, optional=True)
        if self.truncate_prompt_tokens == 0:
            raise _wrong("truncate_prompt_tokens", 0, "-1 or at least 1")
        _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, optional=True)
        _check_strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop)
        _check_strings("bad_words", self.bad_words)
        if self.stop_strings and not self.detokenize:
            raise _wrong("detokenize", False, "true where stop strings are given, for they are sought in the text")
        _check_token_ids("stop_token_ids", self.stop_token_ids)
        _check_token_ids("allowed_token_ids", self.allowed_token_ids)
        _check_token_ids("shown_special_tokens", self.shown_special_tokens)
        if self.allowed_token_ids is not None and len(self.allowed_token_ids) == 0:
            raise _wrong("allowed_token_ids", [], "a list with at least one token, or none")
        _check_logit_bias(self.logit_bias)
        if self.thinking is not None:
            _check_int("thinking.max_tokens", self.thinking.max_tokens, 0)
        self.structured_outputs = read_structured_outputs(self.structured_outputs)
        if self.structured_outputs is not None and self.ignore_eos:
            raise _wrong("ignore_eos", True, "false where the answer has a form, for the end token ends that")


@dataclass
class BeamSearchParams:
    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # 0 leaves the scores as the model gave them
    length_penalty: float = 1.0  # a beam's score is its log probability / length ** length_penalty
    include_stop_str_in_output: bool = False
    early_stopping: bool = False  # end once beam_width beams are finished, even if a running one could overtake them

    def __post_init__(self) -> None:
        _check_int("beam_width", self.beam_width, 1, MAX_N)
        _check_int("max_tokens", self.max_tokens, 1)
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("length_penalty", self.length_penalty, -math.inf, math.inf)


def shown(value: object, limit: int = 80) -> str:
    """A value as an error message shows it: never long, whatever a client sent."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= limit else text[:limit] + "…"


def _wrong(field: str, value: object, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field} must be {allowed}, but is {shown(value)}", param=field)


def _interval(low: float, high: float, open_low: bool) -> str:
    above = f"above {low:g}" if open_low else f"at least {low:g}"
    if math.isinf(low):
        return "a finite number"
    if math.isinf(high):
        return f"a finite number {above}"
    return f"a number {above} and at most {high:g}"


def _check_float(field: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(field, value, _interval(low, high, open_low))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise _wrong(field, value, _interval(low, high, open_low))


def _check_int(field: str, value: object, low: int, high: int | None = None, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise _wrong(
            field, value, f"an integer of at least {low}" + (f" and at most {high}" if high is not None else "")
        )


def _check_strings(field: str, values: object) -> None:
    if values is None:
        return
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _wrong(field, values, "a list of strings")
    for value in values:
        if not isinstance(value, str) or not value:
            raise _wrong(field, value, "made of strings that are not empty")


def _check_token_ids(field: str, values: object) -> None:
    if values is None:
        return
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _wrong(field, values, "a list of token ids")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong(field, value, "made of token ids, which are integers of at least 0")


def _check_logit_bias(bias: object) -> None:
    if bias is None:
        return
    if not isinstance(bias, Mapping):
        raise _wrong("logit_bias", bias, "a map from token ids to numbers")
    for token, value in bias.items():
        if isinstance(token, bool) or not (isinstance(token, int) or (isinstance(token, str) and token.isdecimal())):
            raise _wrong("logit_bias", token, "keyed by token ids")
        _check_float("logit_bias", value, -100.0, 100.0)
