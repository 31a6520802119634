"""The shapes in which a prompt may be given, and the one in which it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, TypeGuard

from trivium.llm.params import shown
from trivium.types.errors import InvalidRequestError


class TextPrompt(TypedDict):
    prompt: str


class _TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


class TokensPrompt(_TokensPrompt, total=False):
    prompt: str  # the text that the tokens stand for; it is shown and not read


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt


def split_prompt(prompt: Prompt) -> tuple[str | None, tuple[int, ...] | None]:
    """(text, token ids); the ids are what counts where they are given."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, dict):
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if ids is not None and is_token_ids(ids):
            return (text if isinstance(text, str) else None), tuple(ids)
        if ids is None and isinstance(text, str):
            return text, None
    elif is_token_ids(prompt):
        return None, tuple(prompt)
    raise InvalidRequestError(
        "a prompt must be a string, a list of token ids, or a map with 'prompt' or 'prompt_token_ids',"
        f" but is {shown(prompt)}",
        param="prompt",
    )


def is_token_ids(value: object) -> TypeGuard[Sequence[int]]:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list."""
    if isinstance(prompts, (str, dict)) or (is_token_ids(prompts) and len(prompts) > 0):
        return [prompts]
    if isinstance(prompts, Sequence):
        return [*prompts]
    raise InvalidRequestError(f"prompts must be a prompt or a list of prompts, but is {shown(prompts)}", param="prompt")
