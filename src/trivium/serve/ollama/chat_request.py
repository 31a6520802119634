"""Ollama's requests as chats: its names for things become chat completions' names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from trivium.dialects.dialect import Dialect
from trivium.records.variants import Variant
from trivium.serve.errors import invalid
from trivium.serve.ollama.options import FIELD_OF_OPTION, sampling_fields
from trivium.serve.ollama.protocol import AnswerRequest, ChatRequest, GenerateRequest, InputMessage
from trivium.serve.openai.protocol import ChatRequest as OpenAIChatRequest
from trivium.serve.openai.protocol import CompletionRequest, GenerationRequest

R = TypeVar("R", bound=GenerationRequest)
OPTION_OF_FIELD = {field: option for option, field in FIELD_OF_OPTION.items()}


def of_chat(request: ChatRequest, variant: Variant, dialect: Dialect) -> OpenAIChatRequest:
    messages = [_message(message, place) for place, message in enumerate(request.messages or ())]
    fields = _chat_fields(request, variant, dialect) | {"messages": _introduced(variant, messages)}
    if request.tools:
        fields["tools"] = request.tools
    return _converted(fields, OpenAIChatRequest)


def of_generate(request: GenerateRequest, variant: Variant, dialect: Dialect) -> OpenAIChatRequest:
    messages = [{"role": "user", "content": request.prompt or ""}]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    # What went before is in the context, the introduction too.
    shown = messages if request.context else _introduced(variant, messages)
    return _converted(_chat_fields(request, variant, dialect) | {"messages": shown}, OpenAIChatRequest)


def of_raw(request: GenerateRequest, variant: Variant) -> CompletionRequest:
    fields = _fields(request, variant) | {"prompt": request.prompt or "", "suffix": request.suffix}
    if request.logprobs:
        fields["logprobs"] = request.top_logprobs or 0
    return _converted(fields, CompletionRequest)


def _chat_fields(request: AnswerRequest, variant: Variant, dialect: Dialect) -> dict[str, Any]:
    fields = _fields(request, variant) | _thinking(request, dialect)
    if request.logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return fields


def _fields(request: AnswerRequest, variant: Variant) -> dict[str, Any]:
    return sampling_fields(variant.parameters | (request.options or {})) | _form(request)


def _form(request: AnswerRequest) -> dict[str, Any]:
    match request.format:
        case None | "":
            return {}
        case "json":
            return {"response_format": {"type": "json_object"}}
        case dict() as schema:
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "format", "schema": schema}}}
    raise invalid(f"format must be 'json' or a JSON schema, but is {request.format[:80]!r}", "format")


def _thinking(request: AnswerRequest, dialect: Dialect) -> dict[str, Any]:
    think = request.think
    if think is None or think == "":
        return {}
    if dialect.reasoning is None:
        if think is False:
            return {}
        raise invalid(f'"{request.model[:200]}" does not support thinking', "think")
    if think is False:
        return {"reasoning_effort": "none"}
    if think is True:
        return {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
    return {"reasoning_effort": think}


def _introduced(variant: Variant, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With what the variant says before every chat; a chat's own system prompt goes before the variant's."""
    has_system = any(message["role"] == "system" for message in messages)
    system = [{"role": "system", "content": variant.system}] if variant.system and not has_system else []
    return [*system, *variant.messages, *messages]


def _message(message: InputMessage, place: int) -> dict[str, Any]:
    if message.images:
        raise invalid(f"messages[{place}]: images are not supported by this model", "messages")
    shown: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        shown["reasoning_content"] = message.thinking
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        shown |= {"name": message.tool_name, "tool_call_id": message.tool_call_id}
    return shown


def _converted(fields: dict[str, Any], struct: type[R]) -> R:
    try:
        return msgspec.convert(fields, struct)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`")
        name = f"options.{OPTION_OF_FIELD[field]}" if field in OPTION_OF_FIELD else field
        raise invalid(f"{name}: {message}" if name else message, name or None) from None
