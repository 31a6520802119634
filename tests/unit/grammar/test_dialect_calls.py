"""Calls that a grammar forces are read as calls by every dialect, and their arguments validate."""

from __future__ import annotations

import json

import jsonschema
import pytest
from walker import Walker

from trivium.dialects.detect import CALL_NAMES, HARMONY, detect
from trivium.dialects.forced_calls import forced_calls, strict_calls
from trivium.dialects.parts import CallArguments, CallStart, Content
from trivium.types.request import GrammarKind

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "say": {"properties": {"words": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2}}},
    "now": {},
}


def read_calls(name: str, text: str) -> tuple[list[tuple[str, str]], str]:
    """(functions called with their arguments, what else was said)"""
    parser = detect("", name).parser(TOOLS, in_reasoning=False)
    assert parser is not None
    parts = parser.feed(text) + parser.finish()
    calls = [[part.name, ""] for part in parts if isinstance(part, CallStart)]
    for part in parts:
        if isinstance(part, CallArguments):
            calls[part.number][1] += part.text
    return [(called, arguments) for called, arguments in calls], "".join(
        p.text for p in parts if isinstance(p, Content)
    )


@pytest.mark.parametrize("name", CALL_NAMES)
def test_c17_forced_calls_are_read_and_their_arguments_validate(walker: Walker, name: str) -> None:
    form = detect("", name).call_form
    assert form is not None
    for several in (False,) if name == HARMONY else (True, False):
        tag = {"format": forced_calls(form, TOOLS, several=several)}
        prepared = walker.prepare(GrammarKind.STRUCTURAL_TAG, json.dumps(tag))
        answers = [answer for seed in range(4) if (answer := walker.write(prepared, seed)) is not None]
        assert answers
        for answer in answers:
            calls, rest = read_calls(name, answer)
            assert rest == "" and calls and (several or len(calls) == 1), answer
            for called, arguments in calls:
                jsonschema.validate(json.loads(arguments), TOOLS[called])


def test_c17_a_named_function_is_the_only_one(walker: Walker) -> None:
    form = detect("").call_form
    assert form is not None
    tag = {"format": forced_calls(form, {"get_weather": TOOLS["get_weather"]}, several=False)}
    prepared = walker.prepare(GrammarKind.STRUCTURAL_TAG, json.dumps(tag))
    assert walker.accepts(prepared, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>')
    assert not walker.accepts(prepared, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')


def test_strict_functions_are_called_rightly_or_not_at_all(walker: Walker) -> None:
    form = strict_calls(detect(""), TOOLS, several=True)
    prepared = walker.prepare(GrammarKind.STRUCTURAL_TAG, json.dumps({"format": form}))
    call = '<tool_call>\n{{"name": "get_weather", "arguments": {}}}\n</tool_call>'
    assert walker.accepts(prepared, "It rains.")
    assert walker.accepts(prepared, "Let me see. " + call.format('{"city": "Rome"}'))
    assert not walker.accepts(prepared, call.format('{"city": "Berlin"}'))
    assert not walker.accepts(prepared, "<tool_call>")


def test_calls_without_a_mark_of_their_own_leave_text_free() -> None:
    for name in ("llama3_json", HARMONY):
        assert strict_calls(detect("", name), TOOLS, several=True) is None
