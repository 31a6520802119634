"""Parts of OpenAI's OpenAPI document 2.3.0 (openapi/, MIT), without its prose, and validation against them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

DOCUMENT = json.loads((Path(__file__).parent / "openapi" / "openai.json").read_text())


def _open(schema: Any) -> Any:
    """With room for more fields than the document names: a superset conforms."""
    if isinstance(schema, dict):
        return {
            key: _open(value) for key, value in schema.items() if not (key == "additionalProperties" and value is False)
        }
    return [_open(item) for item in schema] if isinstance(schema, list) else schema


DEFINITIONS = _open(DOCUMENT["$defs"])


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS})


def assert_conforms(value: Any, name: str) -> None:
    """`name`: a schema of the document."""
    errors = [
        f"{'/'.join(map(str, error.path))}: {error.message[:500]}" for error in _validator(name).iter_errors(value)
    ]
    assert not errors, errors


def assert_event_conforms(event: dict[str, Any]) -> None:
    """An event of a stream of Responses."""
    assert_conforms(event, DOCUMENT["events"][event["type"]])


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """The document's examples of files and batches, and OpenAI's answers, have nulls that its schemas do not know."""
    return {key: item for key, item in value.items() if item is not None}
