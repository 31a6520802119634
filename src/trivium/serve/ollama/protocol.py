"""Ollama's JSON as typed structs: what comes in (unknown fields ignored, null is absent) and what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trivium.serve.openai.protocol import TokenId, TokenLogprob

KeepAlive = float | str


# --- requests ---------------------------------------------------------------------------------------------------------


class CalledFunction(Struct, kw_only=True):
    name: str
    arguments: dict[str, Any] = {}


class ToolCall(Struct, kw_only=True):
    function: CalledFunction
    id: str | None = None


Role = Literal["system", "user", "assistant", "tool"]


class InputMessage(Struct, kw_only=True, omit_defaults=True):
    role: Role
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class AnswerRequest(Struct, kw_only=True):
    """What generate and chat share."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class GenerateRequest(AnswerRequest, kw_only=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[TokenId] | None = None
    raw: bool | None = None
    images: list[str] | None = None


class ChatRequest(AnswerRequest, kw_only=True):
    messages: list[InputMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class ModelRequest(Struct, kw_only=True):
    """Older clients call the model `name`."""

    model: str | None = None
    name: str | None = None


class PullRequest(ModelRequest, kw_only=True):
    stream: bool | None = None


class CreateRequest(ModelRequest, kw_only=True, rename={"from_": "from"}):
    """Either the fields that a Modelfile becomes, or, from older clients, its text."""

    stream: bool | None = None
    modelfile: str | None = None
    from_: str | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[InputMessage] | None = None
    license: str | list[str] | None = None
    template: str | None = None
    quantize: str | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None


class CopyRequest(Struct, kw_only=True):
    source: str
    destination: str


# --- answers ----------------------------------------------------------------------------------------------------------


class FunctionCalled(Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    index: int


class MadeCall(Struct, frozen=True):
    id: str
    function: FunctionCalled


class Message(Struct, frozen=True, omit_defaults=True):
    content: str
    role: str
    thinking: str = ""
    tool_calls: list[MadeCall] = []


class Line(Struct, frozen=True, kw_only=True):
    """One line of an answer, or all of it."""

    model: str
    created_at: str
    message: Message | UnsetType = UNSET  # of a chat
    response: str | UnsetType = UNSET  # of a generation, with the two that follow
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    # With the last line. Durations are in nanoseconds and never 0, because clients divide by them.
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Details(Struct, frozen=True):
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""


class ListedModel(Struct, frozen=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class ModelList(Struct, frozen=True):
    models: list[ListedModel]


class RunningModel(Struct, frozen=True):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(Struct, frozen=True):
    models: list[RunningModel]


class ShownModel(Struct, frozen=True):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    system: str = ""
    license: str = ""


class Status(Struct, frozen=True, omit_defaults=True):
    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


class Version(Struct, frozen=True):
    version: str
