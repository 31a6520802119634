"""A message as it is written: blocks, one open at a time, and the events that tell of them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from trivium.dialects.parts import CallArguments, CallStart, Content, Part, Reasoning
from trivium.serve.anthropic.protocol import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Delta,
    Event,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    OutputBlock,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from trivium.serve.chat.news import ChatUsage, Finish


class MessageWriter:
    """`begin`, then `take` as often as there is news, then `end`. `message` is whole after that."""

    def __init__(self, id: str, model: str, context: int) -> None:
        """`context`: tokens that prompt and answer may have together."""
        self._context = context
        self._blocks: list[OutputBlock] = []
        self._open: OutputBlock | None = None  # as it began
        self._pieces: list[str] = []  # of the open block
        self.message = Message(id, model)

    def begin(self, usage: ChatUsage) -> list[Event]:
        self.message = msgspec.structs.replace(self.message, usage=_usage(usage, output_tokens=0))
        return [MessageStart(self.message)]

    def take(self, parts: Iterable[Part]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            match part:
                case Content(text) if text:
                    events += self._add(TextBlock(), text, TextDelta(text))
                case Reasoning(text) if text:
                    events += self._add(ThinkingBlock(), text, ThinkingDelta(text))
                case CallStart(_, name, id):
                    events += self._begin_block(ToolUseBlock(id or "", name))
                case CallArguments(_, text):
                    events.append(self._piece(text, InputJsonDelta(text)))
        return events

    def end(self, finish: Finish, usage: ChatUsage) -> list[Event]:
        events = self._end_block()
        stop = finish.stop_reason if isinstance(finish.stop_reason, str) else None
        end = MessageEnd(self._stop_reason(finish, stop, usage), stop)
        counted = _usage(usage, usage.completion_tokens)
        self.message = msgspec.structs.replace(
            self.message,
            content=tuple(self._blocks),
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=counted,
        )
        return [*events, MessageDelta(end, counted), MessageStop()]

    def _stop_reason(self, finish: Finish, stop: str | None, usage: ChatUsage) -> str:
        if finish.reason == "length":
            is_full = usage.prompt_tokens + usage.completion_tokens >= self._context
            return "model_context_window_exceeded" if is_full else "max_tokens"
        if stop is not None:
            return "stop_sequence"
        return "tool_use" if finish.reason == "tool_calls" else "end_turn"

    def _add(self, kind: OutputBlock, text: str, delta: Delta) -> list[Event]:
        """To the open block if it is of that kind, else to a new one."""
        events = [] if type(self._open) is type(kind) else self._begin_block(kind)
        return [*events, self._piece(text, delta)]

    def _begin_block(self, block: OutputBlock) -> list[Event]:
        events = self._end_block()
        self._open = block
        return [*events, BlockStart(len(self._blocks), block)]

    def _piece(self, text: str, delta: Delta) -> Event:
        self._pieces.append(text)
        return BlockDelta(len(self._blocks), delta)

    def _end_block(self) -> list[Event]:
        if self._open is None:
            return []
        index, text = len(self._blocks), "".join(self._pieces)
        events: list[Event] = []
        match self._open:
            case TextBlock():
                self._blocks.append(TextBlock(text))
            case ThinkingBlock():
                self._blocks.append(ThinkingBlock(text, _signature(text)))
                events.append(BlockDelta(index, SignatureDelta(_signature(text))))
            case ToolUseBlock(id, name):
                self._blocks.append(ToolUseBlock(id, name, _arguments(text)))
        self._open, self._pieces = None, []
        return [*events, BlockStop(index)]


def _usage(usage: ChatUsage, output_tokens: int) -> Usage:
    return Usage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=output_tokens,
    )


def _signature(thinking: str) -> str:
    """Clients give it back with the thinking and want one; here the thinking needs no seal, and nobody reads it."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def _arguments(text: str) -> dict[str, Any]:
    """Empty where the model was cut short or wrote no object: Anthropic's JSON has no place for anything else."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
