"""The form that a chat's answer must have: calls that must be made, what was asked for otherwise, and reasoning before it."""

from __future__ import annotations

import dataclasses
from typing import Any

from trivium.dialects.dialect import Dialect
from trivium.dialects.forced_calls import forced_calls
from trivium.llm.structured import StructuredOutputsParams
from trivium.serve.chat.tools import Tools
from trivium.serve.errors import invalid
from trivium.types.request import Preamble


def answer_form(
    asked: StructuredOutputsParams | None, tools: Tools, dialect: Dialect, *, in_reasoning: bool
) -> StructuredOutputsParams | None:
    """`asked`: what the request's response_format, or a field like it, says. None: any form will do.

    Calls that must be made go before it; where they may be made, the answer is either.
    """
    preamble = _preamble(dialect, in_reasoning)
    if tools.choice == "required":
        calls = {"format": _calls(tools, dialect)}
        return StructuredOutputsParams(structural_tag=calls, preamble=preamble, param="tools")
    if asked is None:
        return None
    schema = {"type": "object"} if asked.json_object else asked.json
    if tools.choice == "auto" and tools.definitions and isinstance(schema, dict | bool):
        answer = {"type": "json_schema", "json_schema": schema}
        either = {"format": {"type": "or", "elements": [answer, _calls(tools, dialect)]}}
        return StructuredOutputsParams(structural_tag=either, preamble=preamble, param=asked.param)
    return dataclasses.replace(asked, preamble=preamble)


def _calls(tools: Tools, dialect: Dialect) -> dict[str, Any]:
    if dialect.call_form is None:
        raise invalid("the model's dialect has no tool calls that could be forced", "tool_choice")
    functions = {tool.function.name: tool.function.parameters for tool in tools.definitions}
    return forced_calls(dialect.call_form, functions, several=tools.parallel)


def _preamble(dialect: Dialect, in_reasoning: bool) -> Preamble | None:
    marks = dialect.reasoning
    return None if marks is None else Preamble(None if in_reasoning else marks.start, marks.end)
