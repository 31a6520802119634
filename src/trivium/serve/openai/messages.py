"""From a chat request's messages to the prompt: what the template may see, and its text as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trivium.llm.prompts import TokensPrompt
from trivium.serve.errors import invalid
from trivium.serve.generation import beside_the_loop
from trivium.serve.openai.prompts import check_length, tokenize
from trivium.serve.openai.protocol import ChatMessage, ChatRequest, ContentPart, FunctionCall, TokenizeRequest
from trivium.serve.state import ServerState

RESERVED_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


async def chat_prompt(state: ServerState, request: ChatRequest | TokenizeRequest) -> TokensPrompt:
    template = state.llm.template
    if template is None:
        raise invalid("this model has no chat template; use /v1/completions", "messages", "no_chat_template")
    given = request.messages or []
    if not given:
        raise invalid("messages must have at least one message", "messages")
    if len(given) > state.limits.messages:
        raise invalid(f"messages may have {state.limits.messages} entries at most, but has {len(given)}", "messages")
    messages = [_template_message(message, place, template.knows_role) for place, message in enumerate(given)]
    num_chars = sum(len(message["content"]) for message in messages)
    check_length(state, num_chars, "messages")
    extra = _template_kwargs(request)

    def render() -> TokensPrompt:
        text = template.render(
            messages,
            add_generation_prompt=_default(request.add_generation_prompt, not request.continue_final_message),
            continue_final_message=bool(request.continue_final_message),
            **extra,
        )
        return tokenize(state, text, add_special_tokens=bool(request.add_special_tokens))

    if request.continue_final_message and request.add_generation_prompt:
        raise invalid("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    return await beside_the_loop(state, num_chars, render)


def _default(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def _template_kwargs(request: ChatRequest | TokenizeRequest) -> Mapping[str, Any]:
    kwargs = dict(request.chat_template_kwargs or {})
    if taken := RESERVED_KWARGS & kwargs.keys():
        name = min(taken)
        raise invalid(f"chat_template_kwargs may not set {name}", f"chat_template_kwargs.{name}")
    if isinstance(request, ChatRequest) and request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    return kwargs


def _template_message(message: ChatMessage, place: int, knows_role: Any) -> dict[str, Any]:
    where = f"messages[{place}]"
    shown: dict[str, Any] = {
        "role": "system" if message.role == "developer" and not knows_role("developer") else message.role,
        "content": _text(message.content, where),
    }
    calls = [call.function for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(message.function_call)
    if message.content is None and not (message.role == "assistant" and (calls or message.refusal)):
        raise invalid(f"{where}.content must be given", f"{where}.content")
    if message.content is None and message.refusal:
        shown["content"] = message.refusal
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": _template_call(call.function, f"{where}.tool_calls[{number}].function"),
            }
            for number, call in enumerate(message.tool_calls)
        ]
    elif message.function_call is not None:
        call = _template_call(message.function_call, f"{where}.function_call")
        shown["tool_calls"] = [{"type": "function", "function": call}]
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            shown[name] = value
    if reasoning := message.reasoning or message.reasoning_content:
        # Templates differ in the name that they read.
        shown["reasoning"] = shown["reasoning_content"] = reasoning
    return shown


def _text(content: str | Sequence[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part, f"{where}.content[{number}]") for number, part in enumerate(content))


def _part_text(part: ContentPart, where: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in ("text", "input_text", "output_text", "refusal"):
        raise invalid(f"{where}: parts of type {part.type[:80]!r} are not supported by this model", f"{where}.type")
    if text is None:
        raise invalid(f"{where}: a part of type {part.type!r} must have its text", where)
    return text


def _template_call(call: FunctionCall, where: str) -> dict[str, Any]:
    """Arguments come as a JSON string, and templates want the mapping."""
    arguments: Any = call.arguments if call.arguments is not None else {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments else {}
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            raise invalid(f"{where}.arguments is not valid JSON", f"{where}.arguments") from None
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.arguments must be a JSON object", f"{where}.arguments")
    return {"name": call.name, "arguments": arguments}
