"""Anthropic's request as a chat: blocks become messages, and Anthropic's names for things chat completions' names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from trivium.serve.anthropic.protocol import (
    Block,
    InputMessage,
    MessagesRequest,
    OutputFormat,
    PromptRequest,
    Source,
    Tool,
    ToolChoice,
)
from trivium.serve.errors import invalid
from trivium.serve.openai.protocol import ChatRequest

logger = logging.getLogger("trivium.serve")


def chat_request(request: PromptRequest) -> ChatRequest:
    messages = [shown for place, message in enumerate(request.messages) for shown in _messages(message, place)]
    if request.system:
        messages.insert(0, {"role": "system", "content": _text(request.system, "system")})
    fields: dict[str, Any] = {"model": request.model, "messages": messages}
    fields["tools"] = _functions(request.tools or ()) or None
    fields |= _tool_choice(request.tool_choice, has_tools=fields["tools"] is not None)
    fields |= _thinking(request)
    if (form := _output_format(request)) is not None:
        fields["response_format"] = _response_format(form)
    if _goes_on(messages):
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if isinstance(request, MessagesRequest):
        fields |= {
            "max_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
        }
    try:
        return msgspec.convert(fields, ChatRequest)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None


def _goes_on(messages: Sequence[dict[str, Any]]) -> bool:
    """The last message is the beginning of the answer."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _messages(message: InputMessage, place: int) -> Iterator[dict[str, Any]]:
    where = f"messages[{place}]"
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
    elif message.role == "assistant":
        yield _assistant(message.content, where)
    else:
        yield from _user(message.role, message.content, where)


def _assistant(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    said: list[str] = []
    thought: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        match block.type:
            case "thinking":
                thought.append(block.thinking or "")
            case "tool_use":
                if block.name is None:
                    raise invalid(f"{where}.content[{number}]: a tool_use must have a name")
                function = {"name": block.name, "arguments": block.input or {}}
                calls.append({"id": block.id, "type": "function", "function": function})
            case "redacted_thinking":
                pass  # another server's, and sealed
            case _:
                said.append(_block_text(block, f"{where}.content[{number}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
    if thought:
        message["reasoning_content"] = "".join(thought)
    return message | ({"tool_calls": calls} if calls else {})


def _user(role: str, blocks: Sequence[Block], where: str) -> Iterator[dict[str, Any]]:
    """A tool's result is a message of its own; what stands between results is said by the user."""
    said: list[str] = []
    for number, block in enumerate(blocks):
        if block.type != "tool_result":
            said.append(_block_text(block, f"{where}.content[{number}]"))
            continue
        if any(said):
            yield {"role": role, "content": "\n".join(filter(None, said))}
            said = []
        content = block.content if isinstance(block.content, str | list) else None
        result = _text(content or "", f"{where}.content[{number}].content")
        if block.is_error:
            result = f"Error: {result}"
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
    if any(said) or not blocks:
        yield {"role": role, "content": "\n".join(filter(None, said))}


def _text(content: str | Sequence[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(filter(None, (_block_text(block, f"{where}[{n}]") for n, block in enumerate(content))))


def _block_text(block: Block, where: str) -> str:
    match block.type:
        case "text":
            if block.text is None:
                raise invalid(f"{where}: a text block must have its text")
            return block.text
        case "image":
            raise invalid(f"{where}: images are not supported by this model")
        case "document":
            return _document(block, where)
        case "search_result" if isinstance(block.content, list):
            return "\n".join(filter(None, (block.title, _text(block.content, f"{where}.content"))))
    logger.warning("%s: a block of type %r was passed over", where, block.type[:80])
    return ""


def _document(block: Block, where: str) -> str:
    match block.source:
        case Source(type="text", data=str(text)):
            pass
        case Source(type="content", content=content) if content is not None:
            text = _text(content, f"{where}.source.content")
        case _:
            raise invalid(f"{where}: only documents of plain text are supported by this model")
    return f"{block.title}\n{text}" if block.title else text


def _functions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """A tool without a schema is one that Anthropic's own servers run or their models know by heart: nobody offers it."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "parameters": tool.input_schema,
                **({"description": tool.description} if tool.description is not None else {}),
                **({"strict": tool.strict} if tool.strict is not None else {}),
            },
        }
        for tool in tools
        if tool.input_schema is not None
    ]


def _tool_choice(choice: ToolChoice | None, *, has_tools: bool) -> dict[str, Any]:
    if choice is None:
        return {}
    fields: dict[str, Any] = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    match choice.type:
        case "none":
            return {"tool_choice": "none"}
        case "auto":
            return fields | ({"tool_choice": "auto"} if has_tools else {})
        case "any":
            return fields | {"tool_choice": "required"}
    if choice.name is None:
        raise invalid("tool_choice of type 'tool' must have the tool's name")
    return fields | {"tool_choice": {"type": "function", "function": {"name": choice.name}}}


def _thinking(request: PromptRequest) -> dict[str, Any]:
    asked = request.thinking
    effort = request.output_config.effort if request.output_config is not None else None
    fields: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if asked is None:
        return fields
    if asked.type == "disabled":
        return {"reasoning_effort": "none"}
    if asked.type == "enabled":
        if asked.budget_tokens is None:
            raise invalid("thinking of type 'enabled' must have its budget_tokens")
        if isinstance(request, MessagesRequest) and asked.budget_tokens >= request.max_tokens:
            raise invalid(
                f"thinking.budget_tokens must be less than max_tokens, but is {asked.budget_tokens} and max_tokens is"
                f" {request.max_tokens}"
            )
        fields["thinking_budget"] = asked.budget_tokens
    if asked.display == "omitted":
        fields["include_reasoning"] = False
    return fields | {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}


def _output_format(request: PromptRequest) -> OutputFormat | None:
    if request.output_config is not None and request.output_config.format is not None:
        return request.output_config.format
    return request.output_format


def _response_format(form: OutputFormat) -> dict[str, Any]:
    if form.type != "json_schema" or form.schema is None:
        raise invalid("output_config.format must be {'type': 'json_schema', 'schema': …}")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form.schema}}
