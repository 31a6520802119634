"""The form that a chat's answer must have: calls that must be made, what was asked for otherwise, and reasoning before it."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from trivium.dialects.dialect import Dialect
from trivium.dialects.forced_calls import forced_calls, strict_calls
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
        return _tag(_calls(tools, dialect), preamble, "tools")
    if asked is None:
        strict = _strict_calls(tools, dialect)
        return None if strict is None else _tag(strict, preamble, "tools")
    goes_on = dialect.reasoning.goes_on if dialect.reasoning is not None else ""
    if tools.choice == "auto" and tools.definitions and (answer := asked.as_format()) is not None:
        lead = {"type": "optional", "content": {"type": "const_string", "value": goes_on}}
        led = {"type": "sequence", "elements": [lead, answer]} if goes_on else answer
        return _tag({"type": "or", "elements": [led, _calls(tools, dialect)]}, preamble, asked.param)
    return dataclasses.replace(asked, preamble=preamble and replace(preamble, goes_on=goes_on))


def _tag(form: dict[str, Any], preamble: Preamble | None, param: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(structural_tag={"format": form}, preamble=preamble, param=param)


def _calls(tools: Tools, dialect: Dialect) -> dict[str, Any]:
    if dialect.call_form is None:
        raise invalid("the model's dialect has no tool calls that could be forced", "tool_choice")
    functions = {tool.function.name: tool.function.parameters for tool in tools.definitions}
    return forced_calls(dialect.call_form, functions, several=tools.parallel)


def _strict_calls(tools: Tools, dialect: Dialect) -> dict[str, Any] | None:
    """The model is free to call or not; what it calls strictly, it calls rightly."""
    if not any(tool.function.strict for tool in tools.definitions):
        return None
    functions = {
        tool.function.name: tool.function.parameters if tool.function.strict else {} for tool in tools.definitions
    }
    return strict_calls(dialect, functions, several=tools.parallel)


def _preamble(dialect: Dialect, in_reasoning: bool) -> Preamble | None:
    marks = dialect.reasoning
    return None if marks is None else Preamble(None if in_reasoning else marks.start, marks.end)
