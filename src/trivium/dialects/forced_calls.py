"""Calls that a model must make, or must make rightly: what it may write then, as a structural tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.dialects.dialect import CallForm, Dialect, JsonSchema

NO_ARGUMENTS: JsonSchema = {"type": "object", "properties": {}, "additionalProperties": False}


def forced_calls(form: CallForm, functions: Mapping[str, JsonSchema | None], *, several: bool) -> dict[str, Any]:
    """At least one call of one of the functions, each with the schema of its arguments (None: it takes none)."""
    elements = [_calls(form, functions, several)]
    if form.before:
        elements.insert(0, _constant(form.before))
    if form.lead:
        elements.insert(0, {"type": "optional", "content": _constant(form.lead)})
    if form.after:
        elements.append(_constant(form.after))
    return {"type": "sequence", "elements": elements}


def strict_calls(
    dialect: Dialect, functions: Mapping[str, JsonSchema | None], *, several: bool
) -> dict[str, Any] | None:
    """Any text, in which the mark that begins a call can only begin one; None: calls have no mark of their own."""
    form, reasoning = dialect.call_form, dialect.reasoning
    if form is None:
        return None
    elsewhere = "" if reasoning is None else reasoning.start + reasoning.end + reasoning.goes_on
    begin = form.before + form.begin
    mark = next((mark for mark in dialect.marks if begin.startswith(mark) and mark not in elsewhere), None)
    if mark is None:
        return None
    if form.before:
        calls = _calls(form, functions, several)
        tags = [{"type": "tag", "begin": form.before, "content": calls, "end": form.after}]
    else:
        tags = [_tag(form, name, schema) for name, schema in functions.items()]
    return {"type": "triggered_tags", "triggers": [mark], "tags": tags}


def _calls(form: CallForm, functions: Mapping[str, JsonSchema | None], several: bool) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": [_tag(form, name, schema) for name, schema in functions.items()],
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def _constant(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _tag(form: CallForm, name: str, schema: JsonSchema | None) -> dict[str, Any]:
    arguments = NO_ARGUMENTS if schema is None else {"type": "object", **schema}
    content = {"type": "json_schema", "json_schema": arguments}
    return {"type": "tag", "begin": form.begin_of(name), "content": content, "end": form.end}
