"""JSON inside of a model's text: values passed on as they are written, and objects that are calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner, Sink

ARGUMENT_KEYS = ("arguments", "parameters")

_ENDS_SCALAR = re.compile(r"[,}\]\s]")


def pass_value(scanner: Scanner, sink: Sink, keeps: bool = False) -> Reading[bool]:
    """Hand a value on as it is written and as it comes; only brackets and quotes are looked at. False: it was cut short."""
    first = yield from scanner.peek()
    if first in ("{", "["):
        return (yield from _pass_brackets(scanner, sink, keeps))
    if first == '"':
        scanner.hand_on(1, sink, keeps)
        return (yield from _pass_rest_of_string(scanner, sink, keeps))
    while (next_one := (yield from scanner.peek())) and not _ENDS_SCALAR.match(next_one):
        scanner.hand_on(1, sink, keeps)
    return next_one != ""


def _pass_brackets(scanner: Scanner, sink: Sink, keeps: bool) -> Reading[bool]:
    depth = 0
    while end := (yield from _pass_until(scanner, '"{}[]', sink, keeps)):
        if end == '"':
            if not (yield from _pass_rest_of_string(scanner, sink, keeps)):
                return False
            continue
        depth += 1 if end in "{[" else -1
        if depth == 0:
            return True
    return False


def _pass_rest_of_string(scanner: Scanner, sink: Sink, keeps: bool) -> Reading[bool]:
    while end := (yield from _pass_until(scanner, '"\\', sink, keeps)):
        if end == '"':
            return True
        escaped = yield from scanner.peek()
        scanner.hand_on(len(escaped), sink, keeps)
    return False


def _pass_until(scanner: Scanner, characters: str, sink: Sink, keeps: bool) -> Reading[str]:
    """As Scanner.until, but the character that was looked for is handed on too."""
    end = yield from scanner.until(tuple(characters), sink, keeps)
    if end:
        if not keeps:
            scanner.keep()
        sink(end)
    return end


def read_value(scanner: Scanner) -> Reading[str]:
    """A value's text, whole."""
    pieces: list[str] = []
    if not (yield from pass_value(scanner, pieces.append, keeps=True)):
        raise NotACallError
    return "".join(pieces)


def read_string(scanner: Scanner) -> Reading[str]:
    if (yield from scanner.peek()) != '"':
        raise NotACallError
    return loads_string((yield from read_value(scanner)))


def loads_string(text: str) -> str:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        raise NotACallError from None
    if not isinstance(value, str):
        raise NotACallError
    return value


def read_call(scanner: Scanner, speech: Speech, only: Collection[str] | None = None) -> Reading[None]:
    """An object with a name and arguments, which is a call; `only` these names are, where a call has no other sign.

    The call begins as soon as its name is known and its arguments begin. Arguments before the name wait for it.
    """
    yield from scanner.expect("{")
    name = id = arguments = None
    is_started = False
    while True:
        yield from scanner.skip_any()
        if (yield from scanner.try_take("}")):
            break
        key = yield from read_string(scanner)
        yield from scanner.skip_any()
        yield from scanner.expect(":")
        yield from scanner.skip_any()
        if key in ("name", "function") and name is None and (yield from scanner.peek()) == '"':
            name = yield from read_string(scanner)
            if not name or (only is not None and name not in only):
                raise NotACallError
        elif key in ARGUMENT_KEYS and not is_started and arguments is None:
            if name is not None and (yield from scanner.peek()) == "{":
                speech.start_call(name, id)
                is_started = True
                if not (yield from pass_value(scanner, speech.arguments)):
                    return
                scanner.keep()
            else:
                arguments = _object((yield from read_value(scanner)))
        elif key == "id" and (yield from scanner.peek()) == '"':
            id = yield from read_string(scanner)
        elif only is None or key == "type":
            yield from read_value(scanner)
        else:
            raise NotACallError
        yield from scanner.skip_any()
        if (yield from scanner.try_take(",")):
            continue
        is_closed = yield from scanner.try_take("}")
        if not is_closed and not is_started and arguments is None:
            raise NotACallError
        break  # after the arguments, some models forget the brace
    if not is_started:
        if name is None or (arguments is None and only is not None):
            raise NotACallError
        speech.start_call(name, id)
        speech.arguments("{}" if arguments is None else arguments)
    scanner.keep()
    speech.end_call()


def _object(text: str) -> str:
    """The text of an object that may be written as a string of JSON, or left out as null."""
    if text.startswith('"'):
        text = loads_string(text)
    if text == "null":
        return "{}"
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        raise NotACallError from None
    if not isinstance(value, dict):
        raise NotACallError
    return text.strip()
