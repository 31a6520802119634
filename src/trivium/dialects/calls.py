"""What the ways of writing calls have in common."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from trivium.dialects.dialect import JsonSchema
from trivium.dialects.json_text import pass_value
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner

NAME = re.compile(r"[\w.:/-]")
LONGEST_NAME = 256

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_TYPE_OF_JSON: dict[type, str] = {
    dict: "object",
    list: "array",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def read_name(scanner: Scanner) -> Reading[str]:
    name = yield from scanner.take_while(NAME, LONGEST_NAME)
    if not name:
        raise NotACallError
    return name


def pass_json_arguments(scanner: Scanner, speech: Speech, name: str, id: str | None = None) -> Reading[None]:
    """The call begins with its arguments, which are an object as JSON writes it."""
    yield from scanner.skip_any()
    if (yield from scanner.peek()) != "{":
        raise NotACallError
    speech.start_call(name, id)
    if (yield from pass_value(scanner, speech.arguments)):
        end_call(scanner, speech)


def end_call(scanner: Scanner, speech: Speech) -> None:
    """What follows is no part of the call, if it is found to be wrong."""
    scanner.keep()
    speech.end_call()


class ObjectWriter:
    """Writes a call's arguments as a JSON object, argument by argument."""

    def __init__(self, speech: Speech, schema: JsonSchema) -> None:
        self._speech = speech
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._is_empty = True

    def key(self, name: str) -> None:
        before = "{" if self._is_empty else ", "
        self._is_empty = False
        self._speech.arguments(f"{before}{quoted(name)}: ")

    def value(self, json_text: str) -> None:
        self._speech.arguments(json_text)

    def close(self) -> None:
        self._speech.arguments("{}" if self._is_empty else "}")

    def pass_text(self, scanner: Scanner, key: str, end: str, *, is_string: bool | None = None) -> Reading[bool]:
        """The value of `key` up to the mark `end`, which is text whose type the schema tells, unless `is_string` does.

        A string is passed on as it comes. One line break before and one after the value belong to the markup. False:
        the text ended first.
        """
        types = _types(self._properties.get(key))
        if is_string or (is_string is None and types == {"string"}):
            return (yield from self._pass_string(scanner, end))
        pieces: list[str] = []
        if not (yield from scanner.until((end,), pieces.append)):
            return False
        text = "".join(pieces).removeprefix("\n").removesuffix("\n")
        self.value(as_json(text, types if is_string is None else None))
        return True

    def _pass_string(self, scanner: Scanner, end: str) -> Reading[bool]:
        self.value('"')
        held = ""  # a line break that may be the last
        at_start = True

        def sink(text: str) -> None:
            nonlocal held, at_start
            text = text.removeprefix("\n") if at_start else held + text
            at_start = False
            held = "\n" if text.endswith("\n") else ""
            self.value(quoted(text.removesuffix("\n"))[1:-1])

        if not (yield from scanner.until((end,), sink)):
            return False
        self.value('"')
        return True


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any) -> set[str] | None:
    """The types that a schema allows; None: it does not say."""
    given = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(given, str):
        return {given}
    return {item for item in given if isinstance(item, str)} if isinstance(given, list) else None


def as_json(text: str, types: set[str] | None) -> str:
    """The JSON that a value's bare text stands for: of one of the types if it can be, else a string."""
    candidate = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        value = json.loads(candidate, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return quoted(text)
    kind = _TYPE_OF_JSON[type(value)]
    if kind == "string" and types is not None:
        return quoted(text)
    if types is None or kind in types or (kind == "integer" and "number" in types):
        return candidate
    return quoted(text)


def _refuse(constant: str) -> None:
    raise ValueError(constant)
