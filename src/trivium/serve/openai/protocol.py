"""OpenAI's JSON as typed structs: what comes in (unknown fields ignored, null is absent) and what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trivium.observe.request_account import RequestAccount

Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Natural = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


# --- requests ---------------------------------------------------------------------------------------------------------


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(Struct, kw_only=True):
    """`strict` changes nothing: answers always match the schema, or it is refused."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    type: str
    json_schema: JsonSchemaFormat | None = None

    schema: dict[str, Any] | bool | None = None  # with json_object
    structures: list[Any] | None = None  # with structural_tag, and the two that follow
    triggers: list[Any] | None = None
    format: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None


class GenerationRequest(Struct, kw_only=True):
    """The fields that both routes share; those after the blank line are ours and not OpenAI's."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, Number] | None = None
    max_tokens: Count | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None

    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    include_metrics: bool | None = None  # where the answer's time went is told with it

    # What form the answer must have: other servers' names for it.
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None
    structural_tag: Any = None

    # Features of other servers that we do not have: refused by name, because to ignore them would be to answer wrongly.
    use_beam_search: bool | None = None
    logits_processors: Any = None
    lora_path: Any = None


class ContentPart(Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct, kw_only=True):
    function: FunctionCall
    id: str | None = None
    type: str | None = None


class FunctionDefinition(Struct, kw_only=True, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Struct, kw_only=True, frozen=True):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class ChatMessage(Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    # Three names for one thing; the last is a list of objects of which some have a text.
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None


class ReasoningOptions(Struct, kw_only=True):
    effort: str | None = None
    max_tokens: Count | None = None
    enabled: bool | None = None
    exclude: bool | None = None  # think, but do not tell


class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    # The most tokens of reasoning, by the names of several servers.
    thinking_token_budget: Count | None = None
    thinking_budget: Count | None = None

    # Deprecated by OpenAI, and what tools and tool_choice were called before.
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None

    audio: Any = None
    chat_template: Any = None


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None

    prompt_embeds: Any = None


class TokenizeRequest(Struct, kw_only=True):
    """vLLM and SGLang call the text `prompt`, llama.cpp `content`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None
    skip_special_tokens: bool | None = None


# --- answers ----------------------------------------------------------------------------------------------------------


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int = 0


class CompletionTokensDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class PromptLogprob(Struct, frozen=True):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class MessageToolCall(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[MessageToolCall] | UnsetType = UNSET  # never an empty list
    function_call: CalledFunction | UnsetType = UNSET  # where the request spoke of functions, not of tools
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET  # the same: clients look for it under either name


class ChatChoice(Struct, frozen=True):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | None = None  # the stop string or token that ended it


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    metrics: RequestAccount | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True, omit_defaults=True):
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET  # with the first delta of a call only


class ToolCallDelta(Struct, frozen=True, omit_defaults=True):
    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET  # with the first delta of a call only, as is the type
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET  # with the finish reason only


class ChatChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET  # null in all chunks but the last where usage was asked for
    metrics: RequestAccount | UnsetType = UNSET  # in the last chunk where it was asked for


class CompletionLogprobs(Struct, frozen=True):
    """Four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, frozen=True):
    """The whole answer, and also a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestAccount | UnsetType = UNSET


class Model(Struct, frozen=True):
    id: str
    created: int
    max_model_len: int | None  # None: not known before it is loaded
    root: str
    loaded: bool
    parent: str | None = None
    owned_by: str = "trivium"
    object: Literal["model"] = "model"


class ModelList(Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"
