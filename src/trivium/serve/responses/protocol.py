"""Responses' JSON as typed structs: the request, the response object, and the events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trivium.serve.openai.protocol import Count, Natural, TokenLogprob
from trivium.serve.responses.items import Item, OutputText, ReasoningText

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


# --- requests ---------------------------------------------------------------------------------------------------------


class ConversationId(Struct, frozen=True):
    id: str


class TextFormat(Struct, kw_only=True):
    """`json_schema` has the schema beside the type, where chat completions have it one level deeper."""

    type: Literal["text", "json_schema", "json_object"] = "text"
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET


class TextSettings(Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class InputRequest(Struct, kw_only=True):
    """What a prompt is made from: of a response, and of the counting of its tokens."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationId | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    truncation: Literal["auto", "disabled"] | None = None

    chat_template_kwargs: dict[str, Any] | None = None

    # To ignore it would be to answer another question.
    prompt: Any = None


class CreateResponse(InputRequest, kw_only=True):
    """The fields after the blank line are ours, and mean what they mean in chat completions."""

    background: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Natural | None = None
    max_tool_calls: Count | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    user: str | None = None

    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    stop: Any = None
    logit_bias: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    thinking_budget: Any = None
    thinking_token_budget: Any = None
    priority: Any = None
    cache_salt: Any = None


# --- the response -----------------------------------------------------------------------------------------------------


class ResponseError(Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0  # nothing is paid for keeping


class OutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ShownReasoning(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ShownText(Struct, frozen=True):
    format: TextFormat
    verbosity: str = "medium"


class ResponseObject(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationId | None
    prompt_cache_key: str | None
    reasoning: ShownReasoning
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    presence_penalty: float
    frequency_penalty: float
    text: ShownText
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | UnsetType = UNSET
    metadata: dict[str, str]


class DeletedResponse(Struct, frozen=True):
    id: str
    deleted: bool = True
    object: Literal["response"] = "response"


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


# --- events -----------------------------------------------------------------------------------------------------------


class ResponseEvent(Struct, frozen=True, kw_only=True):
    """The response as a whole changed its state: `response.created`, `response.completed` …"""

    type: str
    sequence_number: int
    response: ResponseObject


class ItemEvent(Struct, frozen=True, kw_only=True):
    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    output_index: int
    item: Item


class PartEvent(Struct, frozen=True, kw_only=True):
    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class TextEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of text (`delta`), or all of it (`text`)."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET  # of output text, also where it is empty


class ArgumentsEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["response.function_call_arguments.delta", "response.function_call_arguments.done"]
    sequence_number: int
    item_id: str
    output_index: int
    delta: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class NestedError(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEvent(Struct, frozen=True, kw_only=True):
    """The specification has the fields flat; OpenAI's server nests them, and clients raise for what they find there."""

    type: Literal["error"] = "error"
    sequence_number: int
    code: str | None
    message: str
    param: str | None
    error: NestedError


Event = ResponseEvent | ItemEvent | PartEvent | TextEvent | ArgumentsEvent | ErrorEvent
