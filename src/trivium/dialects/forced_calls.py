"""Calls that a model must make: what it may write then, as a structural tag (xgrammar's JSON for such things)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.dialects.dialect import CallForm, JsonSchema

NO_ARGUMENTS: JsonSchema = {"type": "object", "properties": {}, "additionalProperties": False}


def forced_calls(form: CallForm, functions: Mapping[str, JsonSchema | None], *, several: bool) -> dict[str, Any]:
    """At least one call of one of the functions, each with the schema of its arguments (None: it takes none)."""
    tags = [_tag(form, name, schema) for name, schema in functions.items()]
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }
    elements = [calls]
    if form.before:
        elements.insert(0, _constant(form.before))
    if form.lead:
        elements.insert(0, {"type": "optional", "content": _constant(form.lead)})
    if form.after:
        elements.append(_constant(form.after))
    return {"type": "sequence", "elements": elements}


def _constant(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _tag(form: CallForm, name: str, schema: JsonSchema | None) -> dict[str, Any]:
    arguments = NO_ARGUMENTS if schema is None else {"type": "object", **schema}
    content = {"type": "json_schema", "json_schema": arguments}
    return {"type": "tag", "begin": form.begin_of(name), "content": content, "end": form.end}
