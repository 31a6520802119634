"""JSON schemas, made ready for the matcher: what it should not see is taken out, what it cannot promise is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trivium.grammar.regex import portable_in_json
from trivium.types.errors import InvalidRequestError

Schema = dict[str, Any]

# Between two elements of an answer's JSON, as models write it: a blank, or a line break with an indentation. An unsure
# model would fill its answer with more, were it allowed to.
WHITESPACE = r" |\r?\n[ \t]{0,32}"

# Formats of JSON Schema. Others (OpenAPI's int32 or password, say) are notes for people and change nothing.
_FORMATS = frozenset(
    ("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri")
) | frozenset(
    ("uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex")
)

_BRANCHES = ("allOf", "anyOf", "oneOf")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SINGLES = (
    "items",
    "additionalProperties",
    "additionalItems",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)


def matcher_schema(text: str) -> Schema:
    """The schema as the matcher takes it. It names keywords that it does not know; here only what it would get wrong."""
    return prepare_schema(parse_json(text, "the JSON schema"))


def parse_json(text: str, what: str) -> Any:
    def refuse_constant(name: str) -> Any:
        raise InvalidRequestError(f"{what} holds {name}, which is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{what} holds half of a surrogate pair") from None
    except RecursionError:
        raise InvalidRequestError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequestError(f"{what} is not JSON: {error}") from None


def prepare_schema(schema: Any) -> Schema:
    if schema is False:
        raise InvalidRequestError("the JSON schema is false, which no value matches")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequestError("a JSON schema must be an object, true or false")
    composed = _composed(schema)
    _prepare(schema, composed)
    return schema | {"x-guidance": {"whitespace_pattern": WHITESPACE}}


def _composed(root: Schema) -> set[int]:
    """Ids of the schemas that describe a value together with others: what one leaves open, another may fill."""
    composed: set[int] = set()
    todo: list[tuple[Schema, bool]] = [(root, False)]
    seen: set[tuple[int, bool]] = set()
    while todo:
        schema, is_composed = todo.pop()
        if (id(schema), is_composed) in seen:
            continue
        seen.add((id(schema), is_composed))
        is_composed = is_composed or _composes(root, schema)
        if is_composed:
            composed.add(id(schema))
        if (target := _referred(root, schema.get("$ref"))) is not None:
            todo.append((target, is_composed))
        todo += [(child, is_composed) for child in _children(schema)]
    return composed


def _composes(root: Schema, schema: Schema) -> bool:
    """Whether its parts describe one value together, or are told apart by what they leave open."""
    describing = [key for key in schema if key in (*_BRANCHES, "$ref", "properties", "required", "patternProperties")]
    combining = [key for key in describing if key in (*_BRANCHES, "$ref")]
    if len(describing) > 1:
        return bool(combining)
    if combining == ["allOf"]:
        return isinstance(schema["allOf"], list) and len(schema["allOf"]) > 1
    return combining == ["oneOf"] and not _have_a_discriminator(root, schema["oneOf"])


def _have_a_discriminator(root: Schema, branches: Any) -> bool:
    """Whether each branch is an object with another constant under one and the same name."""
    found: list[dict[str, str]] = []
    for branch in branches if isinstance(branches, list) else ():
        target = _referred(root, branch.get("$ref")) if isinstance(branch, dict) and "$ref" in branch else branch
        named = target.get("properties") if isinstance(target, dict) else None
        required = target.get("required") if isinstance(target, dict) else None
        if not isinstance(named, dict) or not isinstance(required, list):
            return False
        constants = ((name, named.get(name)) for name in required if isinstance(name, str))
        found.append(
            {name: json.dumps(one["const"]) for name, one in constants if isinstance(one, dict) and "const" in one}
        )
    return any(len({one.get(name) for one in found} - {None}) == len(found) for name in (found[0] if found else ()))


def _referred(root: Schema, reference: Any) -> Schema | None:
    """Of a reference inside the schema; others, and wrong ones, are the matcher's to refuse."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        place = place.get(part) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else None


def _children(schema: Schema) -> Iterator[Schema]:
    for key in (*_BRANCHES, "prefixItems", "items"):
        if isinstance(branches := schema.get(key), list):
            yield from (branch for branch in branches if isinstance(branch, dict))
    for key in _MAPS:
        if isinstance(named := schema.get(key), dict):
            yield from (child for child in named.values() if isinstance(child, dict))
    for key in _SINGLES:
        if isinstance(child := schema.get(key), dict):
            yield child


def _prepare(root: Schema, composed: set[int]) -> None:
    todo, seen = [root], set()
    while todo:
        schema = todo.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        schema.pop("x-guidance", None)  # the matcher's own options are not the client's to set
        _check_types(schema)
        _drop_foreign_format(schema)
        _use_portable_patterns(schema)
        _check_num_properties(schema)
        if id(schema) not in composed:
            _close(schema)
        todo += _children(schema)


def _check_types(schema: Schema) -> None:
    """Of what is looked at here; the rest is the matcher's to refuse."""
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise InvalidRequestError("required: must be a list of strings")
    if not isinstance(schema.get("format", ""), str):
        raise InvalidRequestError("format: must be a string")


def _drop_foreign_format(schema: Schema) -> None:
    if "format" in schema and schema["format"] not in _FORMATS:
        del schema["format"]


def _use_portable_patterns(schema: Schema) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = portable_in_json(pattern)
    if isinstance(patterns := schema.get("patternProperties"), dict):
        schema["patternProperties"] = {portable_in_json(pattern): child for pattern, child in patterns.items()}


def _check_num_properties(schema: Schema) -> None:
    """Names that the schema does not list may come twice, and then count once."""
    least = schema.get("minProperties")
    num_sure = max(1, len(set(schema.get("required", []))))
    if isinstance(least, int) and least > num_sure:
        raise InvalidRequestError(
            f"minProperties: {least} is more than the {num_sure} that can be promised; list more names in required"
        )


def _close(schema: Schema) -> None:
    """An object that lists its properties has no others, as callers mean it; to allow them they say so."""
    opened = ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties")
    if isinstance(named := schema.get("properties"), dict) and not any(key in schema for key in opened):
        for name in schema.get("required", []):
            named.setdefault(name, {})
        schema["additionalProperties"] = False
    elif schema.get("unevaluatedProperties") is False and "additionalProperties" not in schema:
        schema["additionalProperties"] = schema.pop("unevaluatedProperties")
