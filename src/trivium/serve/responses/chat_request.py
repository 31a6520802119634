"""A response's input as a chat: items become messages, and Responses' names for things chat completions' names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from trivium.serve.errors import ApiError, invalid
from trivium.serve.openai.protocol import ChatRequest
from trivium.serve.responses.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, text_of
from trivium.serve.responses.protocol import CreateResponse, InputRequest, TextFormat
from trivium.types.errors import InvalidRequestError

# Fields that mean the same on both sides.
PASSED = (
    "model",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "user",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "thinking_budget",
    "thinking_token_budget",
    "priority",
    "cache_salt",
    "chat_template_kwargs",
)
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"

# Where chat completions find fault with a field, and what the client called it.
NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def chat_request(request: InputRequest, items: Sequence[Item]) -> ChatRequest:
    if request.prompt is not None:
        raise invalid("prompt templates are not kept by this server", "prompt", "unsupported_parameter")
    fields: dict[str, Any] = {name: value for name in PASSED if (value := getattr(request, name, None)) is not None}
    fields["messages"] = _messages(request.instructions, items)
    fields["tools"] = _functions(request.tools or []) or None
    fields["tool_choice"] = _tool_choice(request.tool_choice, has_tools=fields["tools"] is not None)
    if request.text is not None and request.text.format is not None:
        fields["response_format"] = _response_format(request.text.format)
    if request.reasoning is not None and request.reasoning.effort is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if isinstance(request, CreateResponse):
        fields["max_completion_tokens"] = request.max_output_tokens
        if request.top_logprobs or LOGPROBS in (request.include or ()):
            fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    try:
        return msgspec.convert(fields, ChatRequest)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        param = _renamed(place.rstrip("`")) if place else None
        raise invalid(f"{param}: {message}" if param else message, param) from None


def _messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """What the assistant thought, said and called without interruption is one message of a chat."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    turn: dict[str, Any] | None = None  # the assistant's message that is being put together
    for item in items:
        if isinstance(item, FunctionCallOutput):
            turn = None
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of([*item.output])
                             if isinstance(item.output, list) else item.output})  # fmt: skip
        elif isinstance(item, Message) and item.role != "assistant":
            turn = None
            messages.append({"role": item.role, "content": text_of(item.content)})
        else:
            if turn is None or (isinstance(item, Message | Reasoning) and "tool_calls" in turn):
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            _add_to_turn(turn, item)
    return messages


def _add_to_turn(turn: dict[str, Any], item: Message | FunctionCall | Reasoning) -> None:
    match item:
        case Message():
            turn["content"] += text_of(item.content)
        case FunctionCall():
            function = {"name": item.name, "arguments": item.arguments}
            turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
        case Reasoning():
            turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning_text(item)


def reasoning_text(item: Reasoning) -> str:
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content:
        return read_reasoning(item.encrypted_content)
    return ""


def write_reasoning(text: str) -> str:
    """What a client that keeps its history itself sends back to us; opaque to it, but no secret."""
    return base64.b64encode(text.encode()).decode()


def read_reasoning(content: str) -> str:
    """Empty where another server wrote it."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _functions(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Only functions can be called through a server; a client that offers other tools too finds them unused."""
    return [
        {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
        for tool in tools
        if tool.get("type") == "function"
    ]


def _tool_choice(given: str | dict[str, Any] | None, *, has_tools: bool) -> str | dict[str, Any] | None:
    match given:
        case {"type": "allowed_tools", "mode": mode, "tools": tools}:
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        case "auto" if not has_tools:
            return None
    return given


def _response_format(given: TextFormat) -> dict[str, Any]:
    if given.type != "json_schema":
        return {"type": given.type}
    schema = {name: value for name, value in msgspec.to_builtins(given).items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


@contextmanager
def clients_names() -> Iterator[None]:
    """Errors of the chat core name the fields that the client sent."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        error.param = _renamed(error.param)
        raise


def _renamed(param: str | None) -> str | None:
    if param is None:
        return None
    for ours, theirs in NAMES.items():
        if param == ours or param.startswith((f"{ours}.", f"{ours}[")):
            return theirs
    return param
