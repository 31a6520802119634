"""JSON schemas of many shapes: some picked by hand, others drawn at random."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"},
    },
    "required": ["name", "age"],
}

PICKED: dict[str, Schema | bool] = {
    "anything": True,
    "any object": {"type": "object"},
    "a person": PERSON,
    "closed": {**PERSON, "additionalProperties": False},
    "open": {**PERSON, "additionalProperties": True},
    "typed rest": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    "required but not listed": {"type": "object", "required": ["x"], "properties": {"y": {"type": "null"}}},
    "references": {
        "type": "object",
        "properties": {"boss": {"$ref": "#/$defs/person"}, "staff": {"type": "array", "items": {"$ref": "#/$defs/person"}}},
        "required": ["boss", "staff"],
        "$defs": {"person": PERSON},
    },
    "recursion": {
        "$ref": "#/definitions/node",
        "definitions": {
            "node": {
                "type": "object",
                "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/definitions/node"}, {"type": "null"}]}},
                "required": ["value", "next"],
            }
        },
    },
    "recursion through itself": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
    "all of": {"allOf": [PERSON, {"properties": {"city": {"type": "string"}}, "required": ["city"]}]},
    "all of references": {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {
            "a": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            "b": {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]},
        },
    },
    "a reference with more beside it": {
        "$ref": "#/$defs/a",
        "properties": {"y": {"type": "boolean"}},
        "required": ["y"],
        "$defs": {"a": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    },
    "a lone all of": {"type": "object", "properties": {"p": {"allOf": [{"$ref": "#/$defs/p"}]}}, "required": ["p"], "$defs": {"p": PERSON}},
    "any of beside properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "one of told apart by type": {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
    "one of told apart by a constant": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind", "lives"]},
            {"type": "object", "properties": {"kind": {"const": "dog"}, "tricks": {"type": "array"}}, "required": ["kind"]},
        ]
    },
    "enum of all kinds": {"enum": ["a", 1, 2.5, None, True, ["x", 1], {"k": "v"}, 'quo"te\\', "ünï"]},
    "enum cut by type": {"enum": ["a", 1, None], "type": "string"},
    "constant": {"const": {"a": [1, 2, {"b": None}]}},
    "many types": {"type": ["string", "integer", "null", "boolean"]},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    "tuple with a rest": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "maxItems": 4},
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}, {"type": "string"}],
        "additionalItems": False,
        "minItems": 2,
    },
    "bounded array": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5},
    "nested arrays": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, "maxItems": 3},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-\\d{4}$"},
    "pattern anywhere": {"type": "string", "pattern": "\\d\\d"},
    "pattern with length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "pattern of anything": {"type": "string", "pattern": "^.*$", "maxLength": 8},
    "pattern with words and blanks": {"type": "string", "pattern": "^\\w+\\s\\W[^\\d\\s]$"},
    "pattern with quotes": {"type": "string", "pattern": '^"[^"\\\\]*"\\\\$', "maxLength": 12},
    "integers in a range": {"type": "integer", "minimum": -17, "maximum": 1234},
    "integers beyond": {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 101},
    "numbers in a range": {"type": "number", "minimum": -0.5, "exclusiveMaximum": 12.25},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "formats": {
        "type": "object",
        "properties": {name: {"type": "string", "format": name} for name in ("date-time", "date", "time", "uuid", "ipv4")},
        "required": ["date-time", "date", "time", "uuid", "ipv4"],
    },
    "foreign formats": {"type": "object", "properties": {"p": {"type": "string", "format": "password"}, "i": {"type": "integer", "format": "int32"}}},
    "names by pattern": {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False, "maxProperties": 3},
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3},
    "no more": {"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False},
    "strange names": {"type": "object", "properties": {'q"uote': {"type": "null"}, "back\\slash": {"type": "null"}, "ü 🙂": {"type": "null"}, "": {"type": "null"}}, "required": ['q"uote', "back\\slash", "ü 🙂", ""]},
    "notes": {"type": "string", "title": "t", "description": "d", "default": "x", "examples": ["y"], "deprecated": True, "$comment": "c"},
    "unknown words": {"type": "integer", "x-anything": {"not": "a keyword"}},
    "a property called like a keyword": {"type": "object", "properties": {"not": {"type": "integer"}, "$ref": {"type": "string"}, "if": {"type": "null"}}, "required": ["not", "$ref", "if"]},
    "nullable by any of": {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}, "required": ["a"]},
}  # fmt: skip


def random_schema(seed: int) -> Schema:
    return _schema(random.Random(seed), depth=0)


def _schema(draw: random.Random, depth: int) -> Schema:
    simple = [_string, _integer, _number, _choice, _scalar]
    nested = [_object, _object, _object, _array, _union, _both]
    return draw.choice(simple if depth > 2 else simple + nested * 2 if depth else nested)(draw, depth)


def _string(draw: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    low = draw.randrange(6)
    if draw.random() < 0.5:
        schema["minLength"] = low
    if draw.random() < 0.5:
        schema["maxLength"] = low + draw.randrange(12)
    if draw.random() < 0.3:
        schema = {
            "type": "string",
            "pattern": draw.choice(["^[a-f0-9]{4,8}$", "^(yes|no)!?$", "[0-9]{2}", "^\\S+@\\S+$", "^a.c$"]),
        }
    elif draw.random() < 0.2:
        schema = {"type": "string", "format": draw.choice(["date", "uuid", "ipv4", "date-time", "time"])}
    return schema


def _integer(draw: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    low = draw.randrange(-(10 ** draw.randrange(1, 8)), 10 ** draw.randrange(1, 8))
    if draw.random() < 0.6:
        schema[draw.choice(["minimum", "exclusiveMinimum"])] = low
    if draw.random() < 0.6:
        schema[draw.choice(["maximum", "exclusiveMaximum"])] = low + 2 + draw.randrange(10 ** draw.randrange(1, 6))
    if draw.random() < 0.1:
        schema = {"type": "integer", "multipleOf": draw.randrange(1, 12)}
    return schema


def _number(draw: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "number"}
    low = round(draw.uniform(-1000, 1000), draw.randrange(4))
    if draw.random() < 0.6:
        schema[draw.choice(["minimum", "exclusiveMinimum"])] = low
    if draw.random() < 0.6:
        schema[draw.choice(["maximum", "exclusiveMaximum"])] = round(low + draw.uniform(0.5, 100), draw.randrange(1, 4))
    return schema


def _choice(draw: random.Random, depth: int) -> Schema:
    values = draw.sample(
        ["red", "green", "blau", "", 'a"b', "\n", 0, -1, 2.5, True, False, None, [], {}, [1, "x"]],
        k=draw.randrange(1, 6),
    )
    return {"const": values[0]} if draw.random() < 0.2 else {"enum": values}


def _scalar(draw: random.Random, depth: int) -> Schema:
    kinds = draw.sample(["boolean", "null", "integer", "string"], k=draw.randrange(1, 4))
    return {"type": kinds[0] if len(kinds) == 1 else kinds}


def _object(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(["id", "name", "a b", "ö", "tags", "x_1", "data", "$v"], k=draw.randrange(0, 6))
    schema: Schema = {"type": "object", "properties": {name: _schema(draw, depth + 1) for name in names}}
    schema["required"] = [name for name in names if draw.random() < 0.6]
    match draw.randrange(5):
        case 0:
            schema["additionalProperties"] = False
        case 1:
            schema["additionalProperties"] = _schema(draw, depth + 1)
        case 2:
            schema["patternProperties"] = {"^p_": _schema(draw, depth + 1)}
            schema["additionalProperties"] = False
    return schema


def _array(draw: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(draw, depth + 1)}
    low = draw.randrange(3)
    if draw.random() < 0.4:
        schema["minItems"] = low
    if draw.random() < 0.6:
        schema["maxItems"] = low + draw.randrange(4)
    if draw.random() < 0.2:
        schema["prefixItems"] = [_schema(draw, depth + 1) for _ in range(draw.randrange(1, 3))]
    return schema


def _union(draw: random.Random, depth: int) -> Schema:
    branches = [_schema(draw, depth + 1) for _ in range(draw.randrange(2, 4))]
    return {draw.choice(["anyOf", "anyOf", "oneOf"]): branches}


def _both(draw: random.Random, depth: int) -> Schema:
    return {"allOf": [_object(draw, depth + 1), _object(draw, depth + 1)]}
