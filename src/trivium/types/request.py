"""What the engine is asked to do: tokens in, and how to draw and stop the tokens that come out."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TextMark(Struct, frozen=True):
    """A text that tokens may spell in any cut, as an automaton: its state is how much of the text has come.

    `ends`: (token, state after it), whatever the state was before; a token that is in neither list leads to state 0.
    `moves`: (state, token, state after it), where that is not what `ends` says.
    """

    length: int  # bytes; the state in which the whole text has come
    ends: tuple[tuple[int, int], ...]
    moves: tuple[tuple[int, int, int], ...]


class ThinkingBudget(Struct, frozen=True):
    """How long a sequence may reason. Tokens only."""

    max_tokens: int
    begin: TextMark | None  # what begins reasoning; None: the prompt has begun it
    end: TextMark  # what ends it
    closing: tuple[
        int, ...
    ]  # what is said for the model when the budget is spent: the end, and what leads to the answer


# Requests of this priority or a lower one (a larger number) are background: nobody waits for them, and beside others
# they get a small share of each step.
BACKGROUND_PRIORITY = 1_000_000


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"  # a JSON list of strings
    RULES = "rules"  # GBNF ("root ::= …") or Lark ("start: …")
    STRUCTURAL_TAG = "structural_tag"  # JSON: free text with parts that must have a form
    COMPILED = "compiled"  # as the matcher reads it; made by the engine from one of the others


class Preamble(Struct, frozen=True):
    """Free text before an answer that has a form: reasoning, between its marks."""

    begin: str | None  # None: the prompt has begun it, so it must be ended; else it may be left out
    end: str
    goes_on: str = ""  # what leads from its end to the answer


class Grammar(Struct, frozen=True, omit_defaults=True):
    """Which texts an answer may be. Where it is whole, it can end; before that, it cannot."""

    kind: GrammarKind
    text: str
    preamble: Preamble | None = None
    param: str = "structured_outputs"  # the field it was given in, for errors


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How one token is drawn from a row of logits. Token ids only; texts were lowered before."""

    seed: int  # 64 bits; drawn at random by the client where the user gave none, so a resume can repeat it
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be completed
    allowed_token_ids: tuple[int, ...] | None = None
    thinking: ThinkingBudget | None = None
    grammar: Grammar | None = None
    logprobs: int | None = None  # None: none; 0: the sampled token's; k: and those of the k likeliest
    prompt_logprobs: int | None = None
    pools: bool = False  # tell the hidden state that the first token is drawn from


class Stopping(Struct, frozen=True, omit_defaults=True):
    """When a sequence ends. `stop_token_ids` holds the model's end tokens too, unless the user ignores them."""

    max_tokens: int
    min_tokens: int = 0  # stop tokens cannot be drawn before
    stop_token_ids: tuple[int, ...] = ()


class Request(Struct, frozen=True, omit_defaults=True, tag="request"):
    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    arrival: float  # seconds of CLOCK_MONOTONIC, which all processes of a machine share
    n: int = 1  # sequences sampled from the one prompt
    priority: int = 0  # lower runs first; see BACKGROUND_PRIORITY
    salt: str = ""  # prefix reuse stays inside one salt (tenant)
    second_from: int = 0  # of a pair of texts for an encoder: where the second begins; 0: the prompt is one text
    is_told_whole: bool = False  # nobody reads the answer while it grows: it may come in few deltas


class Cancel(Struct, frozen=True, tag="cancel"):
    request_id: str
    index: int | None = None  # one sequence of an n > 1 request (its stop string came); None is all of them
