"""Prompts of the completions route: text or tokens, one or many."""

from __future__ import annotations

from trivium.llm.prompts import TokensPrompt
from trivium.serve.errors import invalid
from trivium.serve.generation import beside_the_loop
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.protocol import CompletionRequest


def check_length(model: ServedModel, num_chars: int, param: str) -> None:
    """Refuse a text that cannot fit, whatever its tokens are, before time goes into finding them."""
    context = model.card.max_model_len
    if num_chars > context * model.limits.chars_per_token:
        raise invalid(
            f"this model's maximum context length is {context} tokens, but the text has {num_chars} characters",
            param,
            "context_length_exceeded",
        )


async def tokenize(model: ServedModel, text: str, *, add_special_tokens: bool) -> TokensPrompt:
    encode = model.tokenizer.encode
    tokens = await beside_the_loop(model, len(text), lambda: encode(text, add_special_tokens=add_special_tokens))
    return TokensPrompt(prompt=text, prompt_token_ids=tokens)


async def completion_prompts(model: ServedModel, request: CompletionRequest) -> list[TokensPrompt]:
    texts_or_ids = _split(request.prompt)
    if len(texts_or_ids) > model.limits.prompts:
        raise invalid(f"prompt may have {model.limits.prompts} entries at most, but has {len(texts_or_ids)}", "prompt")
    if request.suffix:
        return [await _prompt_around(model, item, request) for item in texts_or_ids]
    return [await _prompt(model, item, request.add_special_tokens is not False) for item in texts_or_ids]


def _split(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """One entry for each prompt; null is the beginning of a document."""
    if prompt is None or isinstance(prompt, str):
        return [prompt or ""]
    if not prompt:
        raise invalid("prompt must not be an empty list", "prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    lists = [item for item in prompt if isinstance(item, list)]
    if len(ids) == len(prompt):
        return [ids]
    if len(texts) == len(prompt):
        return [*texts]
    if len(lists) == len(prompt):
        return [*lists]
    raise invalid("prompt must be all strings, all token ids, or all lists of token ids", "prompt")


async def _prompt_around(model: ServedModel, item: str | list[int], request: CompletionRequest) -> TokensPrompt:
    """A prompt for the text between it and the request's suffix."""
    fim, suffix = model.fill_in_the_middle, request.suffix or ""
    if fim is None:
        raise invalid(
            "suffix needs a model with tokens for it, and this one has none", "suffix", "unsupported_parameter"
        )
    if not isinstance(item, str):
        raise invalid("suffix needs prompts that are texts, not token ids", "suffix")
    check_length(model, len(item) + len(suffix), "prompt")
    tokens = await beside_the_loop(
        model, len(item) + len(suffix), lambda: fim.prompt(item, suffix, request.add_special_tokens is not False)
    )
    return TokensPrompt(prompt=item, prompt_token_ids=tokens)


async def _prompt(model: ServedModel, item: str | list[int], add_special_tokens: bool) -> TokensPrompt:
    tokenizer = model.tokenizer
    if isinstance(item, str):
        check_length(model, len(item), "prompt")
        prompt = await tokenize(model, item, add_special_tokens=add_special_tokens)
        if prompt["prompt_token_ids"]:
            return prompt
        # Nothing predicts the first token of an empty text but the token that begins every document.
        start = tokenizer.bos_id if tokenizer.bos_id is not None else next(iter(tokenizer.eos_ids), None)
        if start is None:
            raise invalid("prompt must not be empty: this model has no token that begins a text", "prompt")
        return TokensPrompt(prompt=item, prompt_token_ids=[start])
    if not item:
        raise invalid("prompt must not hold an empty list of token ids", "prompt")
    vocab_size = model.card.vocab_size
    if max(item) >= vocab_size:
        raise invalid(f"token id {max(item)} is outside the vocabulary of {vocab_size}", "prompt")
    return TokensPrompt(prompt=tokenizer.decode(item, skip_special_tokens=False), prompt_token_ids=item)
