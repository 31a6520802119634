"""Tools for models whose chat template knows nothing of them: told in words, and past calls written out as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.dialects.dialect import CallForm

Message = Mapping[str, Any]

_HEAD = "You can call functions. These are the ones that there are, each as a JSON object on a line of its own:"
_TAIL = "Its result will be given to you in the next turn. Call a function only where it helps; otherwise just answer."


def tool_prompt(tools: Sequence[Mapping[str, Any]], form: CallForm) -> str:
    described = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    example = form.before + form.begin_of("NAME") + "ARGUMENTS" + form.end + form.after
    how = f"To call one, write this, with its name and a JSON object of its arguments, and nothing else:\n{example}"
    return "\n".join([_HEAD, *described, how, _TAIL])


def with_tool_prompt(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: CallForm, *, takes_system: bool
) -> list[Message]:
    """The tools are told with the system's words, or with the user's first ones where there is no room for a system's."""
    role = "system" if takes_system else "user"
    prompt = tool_prompt(tools, form)
    if messages and messages[0]["role"] in (role, "developer" if takes_system else role):
        first = messages[0]
        return [{**first, "content": f"{text_of(first['content'])}\n\n{prompt}"}, *messages[1:]]
    return [{"role": role, "content": prompt}, *messages]


def with_calls_as_text(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """Calls become words of the assistant, as it would have written them."""
    return [_call_as_text(message, form) if message.get("tool_calls") else message for message in messages]


def with_results_as_text(messages: Sequence[Message]) -> list[Message]:
    """Results become words of the user."""
    return [_result_as_text(message) if message["role"] in ("tool", "function") else message for message in messages]


def with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """Each call in a turn of its own, and its result after it, for templates that show one call of a turn only."""
    results = {message["tool_call_id"]: message for message in messages if message.get("tool_call_id")}
    single: list[Message] = []
    told: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            if message.get("tool_call_id") not in told:
                single.append(message)
            continue
        for place, call in enumerate(calls):
            before = message if place == 0 else {"role": message["role"], "content": ""}
            single.append({**before, "tool_calls": [call]})
            if call["id"] in results:
                single.append(results[call["id"]])
                told.add(call["id"])
    return single


def _call_as_text(message: Message, form: CallForm) -> Message:
    said = [text_of(message["content"])] if message["content"] else []
    calls = form.separator.join(_written(call["function"], form) for call in message["tool_calls"])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join([*said, form.before + calls + form.after])}


def _result_as_text(message: Message) -> Message:
    return {"role": "user", "content": f"<tool_response>\n{text_of(message['content'])}\n</tool_response>"}


def _written(function: Mapping[str, Any], form: CallForm) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return form.begin_of(function["name"]) + (text or "{}") + form.end


def text_of(content: str | Sequence[Mapping[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
