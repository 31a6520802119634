"""Anthropic's JSON as typed structs: what comes in (unknown fields ignored, null is absent) and what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Natural = Annotated[int, Meta(ge=1, le=2**31 - 1)]


# --- requests ---------------------------------------------------------------------------------------------------------


class Source(Struct, kw_only=True):
    """Of a document or an image."""

    type: str
    data: str | None = None
    content: str | list[Block] | None = None


class Block(Struct, kw_only=True):
    """A piece of a message. Which fields it has follows from its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None  # of a tool_use, with its name and its input
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None  # of a tool_result, with its content
    content: str | list[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    source: Source | None = None
    title: str | None = None


class InputMessage(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct, kw_only=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None  # Anthropic's own tools have none
    strict: bool | None = None


class ToolChoice(Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: str | None = None  # "omitted": think, but do not tell


class OutputFormat(Struct, kw_only=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class PromptRequest(Struct, kw_only=True):
    """All that the prompt is made of."""

    model: str
    messages: list[InputMessage]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its older name


class MessagesRequest(PromptRequest, kw_only=True):
    max_tokens: Natural
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None


# --- answers ----------------------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True):
    """The prompt's tokens are the sum of the first three."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0


class TextBlock(Struct, frozen=True, tag="text"):
    text: str = ""
    citations: None = None


class ThinkingBlock(Struct, frozen=True, tag="thinking"):
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = {}


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Message(Struct, frozen=True, tag="message"):
    id: str
    model: str
    content: tuple[OutputBlock, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage = Usage()
    role: Literal["assistant"] = "assistant"


class TextDelta(Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, frozen=True, tag="signature_delta"):
    signature: str


class InputJsonDelta(Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(Struct, frozen=True, tag="message_start"):
    message: Message


class BlockStart(Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: OutputBlock


class BlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: Delta


class BlockStop(Struct, frozen=True, tag="content_block_stop"):
    index: int


class MessageEnd(Struct, frozen=True):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag="message_delta"):
    delta: MessageEnd
    usage: Usage  # of the whole message up to here


class MessageStop(Struct, frozen=True, tag="message_stop"):
    pass


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class InputTokens(Struct, frozen=True):
    input_tokens: int


class ModelInfo(Struct, frozen=True, tag="model"):
    id: str
    display_name: str
    created_at: str  # RFC 3339


class ModelPage(Struct, frozen=True):
    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: bool = False
