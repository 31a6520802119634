"""Every JSON schema that is accepted gives answers that validate, whatever is drawn; the others are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from random_schemas import PICKED, random_schema
from walker import Walker

from trivium.grammar.json_schema import prepare_schema
from trivium.types.request import GrammarKind

# Drawn schemas that are accepted but whose answers do not end within the walker's patience would prove nothing.
MOST_UNFINISHED = 0.05


def check_answers(walker: Walker, schema: dict[str, Any] | bool, num_answers: int) -> tuple[int, int]:
    """(answers checked, answers that did not end); both 0 where the schema was refused."""
    preparation = walker.prepare(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    if preparation.error is not None:
        return 0, 0
    kind = validator_for(schema, default=Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    answers = [walker.write(preparation, seed) for seed in range(num_answers)]
    for answer in answers:
        if answer is not None:
            validator.validate(json.loads(answer))
    return sum(answer is not None for answer in answers), answers.count(None)


@pytest.mark.parametrize("name", PICKED)
def test_answers_validate(walker: Walker, name: str) -> None:
    checked, _ = check_answers(walker, PICKED[name], 4)
    assert checked > 0


def test_answers_to_drawn_schemas_validate(walker: Walker) -> None:
    counts = [check_answers(walker, random_schema(seed), 2) for seed in range(60)]
    assert sum(checked > 0 for checked, _ in counts) > 30
    assert sum(unfinished for _, unfinished in counts) < MOST_UNFINISHED * 120


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_answers_to_a_thousand_drawn_schemas_validate(walker: Walker) -> None:
    counts = [check_answers(walker, random_schema(seed), 4) for seed in range(1000, 2000)]
    assert sum(checked > 0 for checked, _ in counts) > 500
    assert sum(unfinished for _, unfinished in counts) < MOST_UNFINISHED * 4000


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "object", "properties": {"a": {}}, "required": [["a"]]}, "required"),
        ({"type": "string", "format": ["date"]}, "format"),
        ({"const": "\ud800"}, "surrogate"),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
        ({"type": "array", "contains": {"type": "integer"}}, '"contains"'),
        ({"if": {"type": "string"}, "then": {"minLength": 1}}, '"if"'),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, '"dependentRequired"'),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, '"propertyNames"'),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}}, '"not"'),
        ({"type": "object", "minProperties": 3}, "minProperties"),
        ({"type": "string", "format": "json-pointer"}, "json-pointer"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": r"(a)\1"}, "backreferences"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]}, "oneOf"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"type": "strin"}, "strin"),
    ],
)
def test_what_cannot_be_promised_is_refused_by_name(walker: Walker, schema: dict[str, Any], named: str) -> None:
    assert named in walker.why_not(GrammarKind.JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"enum": [1, 2], "type": "string"},
    ],
)
def test_a_schema_that_nothing_matches_is_refused(walker: Walker, schema: Any) -> None:
    assert walker.why_not(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def test_the_matchers_own_options_are_not_the_clients_to_set(walker: Walker) -> None:
    schema = {"x-guidance": {"lenient": True}, "not": {"type": "string"}}
    assert '"not"' in walker.why_not(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def test_json_is_written_compactly_or_indented_but_never_padded(walker: Walker) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    prepared = walker.prepare(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    for text in ('{"a":1}', '{"a": 1}', '{\n  "a": 1\n}', '{\n\t"a": 1\n}'):
        assert walker.accepts(prepared, text)
    for text in ('{  "a": 1}', '{\n\n"a": 1}', ' {"a": 1}', '{"a": 1} ', '{"a": 1, "b": 2}', '{"a": 1, "a": 1}'):
        assert not walker.accepts(prepared, text)


def test_an_object_that_lists_its_properties_is_closed_unless_it_says_otherwise() -> None:
    listed = {"properties": {"a": {}}, "required": ["b"]}
    assert prepare_schema({**listed})["additionalProperties"] is False
    assert prepare_schema({**listed, "additionalProperties": True})["additionalProperties"] is True
    composed = prepare_schema({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})
    assert all("additionalProperties" not in branch for branch in composed["allOf"])
