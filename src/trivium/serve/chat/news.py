"""What a chat's answer is made of, as it comes and as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from trivium.dialects.parts import CallArguments, CallStart, Content, Part, Reasoning
from trivium.llm.outputs import TokenLogprobDict


class Finish(Struct, frozen=True):
    """`tool_calls`: it ended by itself, with calls made."""

    reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | None = None  # the stop token or string of the request that ended it


class ChoiceNews(Struct, frozen=True):
    """What is new in one of the n answers. Its calls are numbered from 0, and each has an id."""

    index: int
    parts: tuple[Part, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobDict, ...] = ()  # one for each of `token_ids` where they were asked for
    finish: Finish | None = None  # comes once, after all else


class ChatUsage(Struct, frozen=True):
    """Tokens; those of reasoning are among the completion's."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


class ChatNews(Struct, frozen=True):
    choices: tuple[ChoiceNews, ...]
    usage: ChatUsage  # up to here


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: str


class ChoiceResult(Struct, frozen=True):
    """One answer, whole."""

    index: int
    content: str
    reasoning: str
    calls: tuple[Call, ...]
    token_ids: list[int]
    logprobs: tuple[TokenLogprobDict, ...]  # one for each of `token_ids` where they were asked for
    finish: Finish


class ChatResult(Struct, frozen=True):
    choices: list[ChoiceResult]
    usage: ChatUsage
    prompt_logprobs: list[TokenLogprobDict | None] | None = None


def content_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def calls_of(parts: Sequence[Part]) -> tuple[Call, ...]:
    starts = [part for part in parts if isinstance(part, CallStart)]
    pieces: dict[int, list[str]] = {start.number: [] for start in starts}
    for part in parts:
        if isinstance(part, CallArguments):
            pieces[part.number].append(part.text)
    return tuple(Call(start.id or "", start.name, "".join(pieces[start.number])) for start in starts)
