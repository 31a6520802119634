"""Tools for models whose chat template knows nothing of them: told in words, and past calls written out as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_HEAD = "You can call functions. These are the ones that there are, each as a JSON object on a line of its own:\n"
_TAIL = (
    "\nTo call one, write a JSON object with its name and its arguments between these tags, and nothing else:\n"
    '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>\n'
    "Its result will be given to you in the next turn. Call a function only where it helps; otherwise just answer."
)


def tool_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    described = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return _HEAD + "\n".join(described) + _TAIL


def with_tool_prompt(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, takes_system: bool
) -> list[Message]:
    """The tools are told with the system's words, or with the user's first ones where there is no room for a system's."""
    role = "system" if takes_system else "user"
    prompt = tool_prompt(tools)
    if messages and messages[0]["role"] in (role, "developer" if takes_system else role):
        first = messages[0]
        return [{**first, "content": f"{text_of(first['content'])}\n\n{prompt}"}, *messages[1:]]
    return [{"role": role, "content": prompt}, *messages]


def with_calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Calls become words of the assistant, and results words of the user."""
    return [_as_text(message) for message in messages]


def _as_text(message: Message) -> Message:
    if calls := message.get("tool_calls"):
        said = [text_of(message["content"])] if message["content"] else []
        written = [_written(call["function"]) for call in calls]
        return {"role": message["role"], "content": "\n".join([*said, *written])}
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{text_of(message['content'])}\n</tool_response>"}
    return message


def _written(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {text or "{}"}}}\n</tool_call>'


def text_of(content: str | Sequence[Mapping[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
