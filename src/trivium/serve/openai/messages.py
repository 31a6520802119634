"""From a chat request's messages to the prompt: what the template may see, and its text as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trivium.dialects.dialect import CallForm
from trivium.dialects.tool_prompt import (
    with_calls_as_text,
    with_results_as_text,
    with_single_calls,
    with_tool_prompt,
)
from trivium.llm.prompts import TokensPrompt
from trivium.serve.chat.thinking import template_kwargs
from trivium.serve.errors import invalid
from trivium.serve.generation import beside_the_loop
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.prompts import check_length, tokenize
from trivium.serve.openai.protocol import ChatMessage, ChatRequest, ContentPart, TokenizeRequest, ToolCall
from trivium.text.template import ChatTemplate

RESERVED_KWARGS = frozenset({"self", "messages", "tools", "add_generation_prompt", "continue_final_message"})


async def chat_prompt(
    model: ServedModel, request: ChatRequest | TokenizeRequest, tools: Sequence[Mapping[str, Any]]
) -> TokensPrompt:
    template = model.template
    given = request.messages or []
    if not given:
        raise invalid("messages must have at least one message", "messages")
    if len(given) > model.limits.messages:
        raise invalid(f"messages may have {model.limits.messages} entries at most, but has {len(given)}", "messages")
    messages: Sequence[Mapping[str, Any]] = [_message(message, place) for place, message in enumerate(given)]
    num_chars = _num_chars(messages)
    check_length(model, num_chars, "messages")
    extra = _template_kwargs(request)

    if request.continue_final_message and request.add_generation_prompt:
        raise invalid("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")

    def render() -> str:
        return template.render(
            _in_words(template, model.dialect.call_form, messages, tools),
            tools if template.shows_tools else None,
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            **extra,
        )

    async with model.template_turn:
        text = await beside_the_loop(model, num_chars, render)
    return await tokenize(model, text, add_special_tokens=bool(request.add_special_tokens))


def _in_words(
    template: ChatTemplate,
    form: CallForm | None,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> Sequence[Mapping[str, Any]]:
    """Tools and calls written out, where the template would pass over them."""
    num_calls = max((len(message.get("tool_calls", ())) for message in messages), default=0)
    if num_calls or any(message["role"] in ("tool", "function") for message in messages):
        if not template.shows_calls and form is not None:
            messages = with_calls_as_text(messages, form)
        elif num_calls > 1 and not template.shows_several_calls:
            messages = with_single_calls(messages)
        if not template.shows_results:
            messages = with_results_as_text(messages)
    if tools and form is not None and not template.shows_tools:
        return with_tool_prompt(messages, tools, form, takes_system=template.takes_system)
    return messages


def _template_kwargs(request: ChatRequest | TokenizeRequest) -> Mapping[str, Any]:
    kwargs = dict(request.chat_template_kwargs or {})
    if taken := RESERVED_KWARGS & kwargs.keys():
        name = min(taken)
        raise invalid(f"chat_template_kwargs may not set {name}", f"chat_template_kwargs.{name}")
    return {**template_kwargs(request), **kwargs} if isinstance(request, ChatRequest) else kwargs


def _message(message: ChatMessage, place: int) -> dict[str, Any]:
    """As the template takes it; the forms that templates differ in are the template's affair."""
    where = f"messages[{place}]"
    shown: dict[str, Any] = {"role": message.role, "content": _content(message, where)}
    calls = message.tool_calls or ([ToolCall(function=message.function_call)] if message.function_call else [])
    if calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments or {}},
            }
            for call in calls
        ]
    reasoning = message.reasoning or message.reasoning_content or _detailed_reasoning(message)
    others = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": reasoning}
    return shown | {name: value for name, value in others.items() if value is not None}


def _detailed_reasoning(message: ChatMessage) -> str | None:
    texts = [detail.get("text") for detail in message.reasoning_details or ()]
    return "\n".join(text for text in texts if isinstance(text, str)) or None


def _content(message: ChatMessage, where: str) -> str | list[dict[str, str]]:
    content = message.content
    if isinstance(content, list):
        return [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
    if content is not None:
        return content
    said_otherwise = message.tool_calls or message.function_call or message.refusal or message.reasoning
    if message.role == "assistant" and (said_otherwise or message.reasoning_content):
        return message.refusal or ""
    raise invalid(f"{where}.content must be given", f"{where}.content")


def _part(part: ContentPart, where: str) -> dict[str, str]:
    if part.type not in ("text", "input_text", "output_text", "refusal"):
        raise invalid(f"{where}: parts of type {part.type[:80]!r} are not supported by this model", f"{where}.type")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise invalid(f"{where}: a part of type {part.type!r} must have its text", where)
    return {"type": "text", "text": text}


def _num_chars(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(
        len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content)
        for content in (message["content"] for message in messages)
    )
