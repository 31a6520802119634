"""From a prompt and sampling parameters, which speak of texts, to the engine's Request, which knows tokens only."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from trivium.faults import fault_point
from trivium.llm.params import MAX_SEED, SamplingParams
from trivium.llm.prompts import Prompt, split_prompt
from trivium.llm.structured import read_structured_outputs
from trivium.text.tokenizer import Tokenizer
from trivium.types.card import ModelCard
from trivium.types.errors import InvalidRequestError, NeverFitsError
from trivium.types.request import Grammar, Request, Sampling, Stopping, ThinkingBudget


@dataclass(frozen=True, slots=True)
class LoweredPrompt:
    text: str | None
    token_ids: tuple[int, ...]


def lower_prompt(prompt: Prompt, tokenizer: Tokenizer | None) -> LoweredPrompt:
    text, token_ids = split_prompt(prompt)
    if token_ids is None:
        assert text is not None
        token_ids = tuple(_needed(tokenizer, "a prompt given as text", "prompt").encode(text))
    return LoweredPrompt(text, token_ids)


def lower_request(
    prompt: LoweredPrompt,
    params: SamplingParams,
    tokenizer: Tokenizer | None,
    card: ModelCard,
    *,
    request_id: str,
    drawn_seed: int,
    priority: int = 0,
    salt: str = "",
) -> Request:
    """Refuses here what the engine could only refuse later. `drawn_seed` is used where the parameters have none."""
    fault_point("llm.lower", request_id)
    _check_makes_text(card)
    params.check()
    token_ids = _truncate(prompt.token_ids, params, card)
    if not token_ids:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    _check_in_vocabulary("prompt", token_ids, card)
    if params.stop_strings:
        _needed(tokenizer, "a stop string", "stop")
    return Request(
        id=request_id,
        prompt=token_ids,
        sampling=_lower_sampling(params, tokenizer, card, drawn_seed),
        stopping=_lower_stopping(params, tokenizer, card, len(token_ids)),
        arrival=time.monotonic(),
        n=params.n,
        priority=priority,
        salt=salt,
    )


def lower_pooling(
    prompt: LoweredPrompt, card: ModelCard, *, request_id: str, priority: int = 0, salt: str = "", second_from: int = 0
) -> Request:
    """For what the model makes of a prompt, as a vector. A decoder draws one token with it."""
    fault_point("llm.lower_pooling", request_id)
    token_ids = prompt.token_ids
    if not token_ids:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    _check_in_vocabulary("prompt", token_ids, card)
    if len(token_ids) > longest_pooled(card):
        if card.task == "generate":
            raise NeverFitsError(len(token_ids), 1, card.max_model_len)
        raise InvalidRequestError(
            f"maximum context length is {card.max_model_len} tokens, but the text has {len(token_ids)}",
            param="prompt",
            code="context_length_exceeded",
        )
    return Request(
        id=request_id,
        prompt=token_ids,
        sampling=Sampling(seed=0, temperature=0.0, pools=True),
        stopping=Stopping(max_tokens=1),
        arrival=time.monotonic(),
        priority=priority,
        salt=salt,
        second_from=second_from,
    )


def longest_pooled(card: ModelCard) -> int:
    """Tokens of the longest text that the model makes a vector of."""
    return card.max_model_len - 1 if card.task == "generate" else card.max_model_len


def _check_makes_text(card: ModelCard) -> None:
    if card.task == "generate":
        return
    does = "vectors of texts (/v1/embeddings)" if card.task == "embed" else "scores of pairs of texts (/v1/rerank)"
    raise InvalidRequestError(f"the model {card.name} is an encoder: it makes {does}, and no text", param="model")


def end_token_ids(tokenizer: Tokenizer | None, card: ModelCard) -> frozenset[int]:
    """The model's own end tokens: those of its configuration and those of its tokenizer."""
    return frozenset(card.eos_token_ids) | frozenset(tokenizer.eos_ids if tokenizer is not None else ())


def _lower_sampling(params: SamplingParams, tokenizer: Tokenizer | None, card: ModelCard, drawn_seed: int) -> Sampling:
    bias = tuple((int(token), float(value)) for token, value in (params.logit_bias or {}).items())
    _check_in_vocabulary("logit_bias", (token for token, _ in bias), card)
    _check_in_vocabulary("allowed_token_ids", params.allowed_token_ids or (), card)
    seed = params.seed if params.seed not in (None, -1) else drawn_seed
    assert seed is not None
    return Sampling(
        seed=seed & MAX_SEED,
        temperature=float(params.temperature),
        top_k=max(params.top_k, 0),
        top_p=float(params.top_p),
        min_p=float(params.min_p),
        typical_p=float(params.typical_p),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        repetition_penalty=float(params.repetition_penalty),
        logit_bias=bias,
        bad_words=_lower_bad_words(params, tokenizer),
        allowed_token_ids=tuple(params.allowed_token_ids) if params.allowed_token_ids is not None else None,
        thinking=_lower_thinking(params, tokenizer),
        grammar=_lower_grammar(params, tokenizer),
        logprobs=_lower_count("logprobs", params.logprobs, card),
        prompt_logprobs=_lower_count("prompt_logprobs", params.prompt_logprobs, card),
    )


def _lower_stopping(
    params: SamplingParams, tokenizer: Tokenizer | None, card: ModelCard, num_prompt_tokens: int
) -> Stopping:
    room = card.max_model_len - num_prompt_tokens
    max_tokens = max(room, 1) if params.max_tokens is None else params.max_tokens
    if max_tokens > room:
        raise NeverFitsError(num_prompt_tokens, max_tokens, card.max_model_len)
    if params.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens must be at most the {max_tokens} tokens that the context has room for,"
            f" but is {params.min_tokens}",
            param="min_tokens",
        )
    _check_in_vocabulary("stop_token_ids", params.stop_token_ids or (), card)
    ends = frozenset() if params.ignore_eos else end_token_ids(tokenizer, card)
    stops = ends.union(params.stop_token_ids or ())
    return Stopping(max_tokens=max_tokens, min_tokens=params.min_tokens, stop_token_ids=tuple(sorted(stops)))


def _lower_bad_words(params: SamplingParams, tokenizer: Tokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Each word as it is spelled at the start of a text and after a space: tokenizers spell these differently."""
    if not params.bad_words:
        return ()
    encode = _needed(tokenizer, "a bad word", "bad_words").encode
    spellings = [
        tuple(encode(prefix + word.lstrip(), add_special_tokens=False))
        for word in params.bad_words
        for prefix in ("", " ")
    ]
    return tuple(dict.fromkeys(spelling for spelling in spellings if spelling))


def _lower_thinking(params: SamplingParams, tokenizer: Tokenizer | None) -> ThinkingBudget | None:
    limit = params.thinking
    if limit is None:
        return None
    tokenizer = _needed(tokenizer, "a limit of reasoning", "thinking")
    return ThinkingBudget(
        max_tokens=limit.max_tokens,
        begin=None if limit.begin is None else tokenizer.mark(limit.begin),
        end=tokenizer.mark(limit.end),
        closing=tuple(tokenizer.encode(limit.end + limit.goes_on, add_special_tokens=False)),
    )


def _lower_grammar(params: SamplingParams, tokenizer: Tokenizer | None) -> Grammar | None:
    structured = read_structured_outputs(params.structured_outputs)
    if structured is None:
        return None
    fault_point("llm.lower_grammar")
    _needed(tokenizer, "an answer of a given form", structured.param)
    return structured.lower()


def _lower_count(field: str, count: int | None, card: ModelCard) -> int | None:
    if count == -1:
        return card.vocab_size
    if count is not None and count > card.vocab_size:
        raise InvalidRequestError(
            f"{field} must be at most {card.vocab_size}, the size of the vocabulary, but is {count}", param=field
        )
    return count


def _truncate(token_ids: tuple[int, ...], params: SamplingParams, card: ModelCard) -> tuple[int, ...]:
    keep = params.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep == -1:
        keep = max(card.max_model_len - (params.max_tokens or 1), 1)
    return token_ids[-keep:]


def _check_in_vocabulary(field: str, token_ids: Iterable[int], card: ModelCard) -> None:
    for token in token_ids:
        if not 0 <= token < card.vocab_size:
            raise InvalidRequestError(
                f"{field} has the token id {token}, which is outside the vocabulary of {card.vocab_size}", param=field
            )


def _needed(tokenizer: Tokenizer | None, what: str, field: str) -> Tokenizer:
    if tokenizer is None:
        raise InvalidRequestError(f"{what} needs the tokenizer, and skip_tokenizer_init left it out", param=field)
    return tokenizer
