"""`[f(a=1, b="x"), g()]`: calls as Python writes them. Llama 4 and Llama 3.2 as a whole answer, LFM2 between marks."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping

from msgspec import Struct

from trivium.dialects.calls import ObjectWriter, end_call, new_call_id, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_calls import JSON_BEGIN, read_calls
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner

_JSON_WORDS = frozenset(("true", "false", "null"))


class PythonicCalls(Struct, frozen=True):
    """Without marks, a list at the beginning of a passage is one of calls if it names functions on offer."""

    open: str = ""
    close: str = ""

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.open,) if self.open else ()

    @property
    def bare_openers(self) -> str:
        return "" if self.open else "["

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close) if self.open else ()

    @property
    def form(self) -> CallForm:
        """Forced calls are a list of JSON, which is read here too: no grammar makes Python out of a schema."""
        return CallForm(JSON_BEGIN, "}", before=f"{self.open}[", after=f"]{self.close}", separator=", ")

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.skip_any()
        if (yield from scanner.peek(2)) == "[{":
            yield from read_calls(scanner, speech, None if opener else tools, close=self.close)
            return
        yield from self._read_list(scanner, speech, None if opener else tools)
        yield from scanner.skip_any()
        if self.close and not (yield from scanner.ends()):
            yield from scanner.expect(self.close)

    def _read_list(self, scanner: Scanner, speech: Speech, only: Mapping[str, JsonSchema] | None) -> Reading[None]:
        yield from scanner.expect("[")
        while True:
            yield from scanner.skip_any()
            name = yield from read_name(scanner)
            if only is not None and name not in only:
                raise NotACallError
            yield from scanner.expect("(")
            yield from pass_keyword_arguments(scanner, speech, name)
            yield from scanner.skip_any()
            if not (yield from scanner.try_take(",")):
                break
        yield from scanner.expect("]")

    def call_id(self) -> str:
        return new_call_id()


def pass_keyword_arguments(scanner: Scanner, speech: Speech, name: str) -> Reading[None]:
    """The call of `name`, whose opening parenthesis was read, to its closing one."""
    yield from scanner.skip_any()
    key = None if (yield from scanner.peek()) == ")" else (yield from _read_key(scanner))
    speech.start_call(name)
    scanner.keep()
    writer = ObjectWriter(speech, {})
    while key is not None:
        value = yield from _read_value(scanner)
        writer.key(key)
        writer.value(value)
        scanner.keep()
        if not (yield from scanner.try_take(",")):
            break
        yield from scanner.skip_any()
        key = None if (yield from scanner.peek()) == ")" else (yield from _read_key(scanner))
    yield from scanner.expect(")")
    writer.close()
    end_call(scanner, speech)


def _read_key(scanner: Scanner) -> Reading[str]:
    key = yield from read_name(scanner)
    yield from scanner.skip_any()
    yield from scanner.expect("=")
    return key


def _read_value(scanner: Scanner) -> Reading[str]:
    """A literal, up to the comma or parenthesis after it, as JSON."""
    pieces: list[str] = []
    depth = 0
    while True:
        next_one = yield from scanner.peek()
        if not next_one:
            raise NotACallError
        if next_one in "'\"":
            yield from _pass_string(scanner, pieces, next_one)
            continue
        if depth == 0 and next_one in ",)":
            return _literal("".join(pieces))
        depth += (next_one in "([{") - (next_one in ")]}")
        pieces.append(next_one)
        scanner.skip(1)


def _pass_string(scanner: Scanner, pieces: list[str], quote: str) -> Reading[None]:
    pieces.append(quote)
    scanner.skip(1)
    while end := (yield from scanner.until((quote, "\\"), pieces.append, keeps=True)):
        pieces.append(end)
        if end == quote:
            return
        pieces.append((yield from scanner.peek()))
        scanner.skip(len(pieces[-1]))
    raise NotACallError


def _literal(text: str) -> str:
    text = text.strip()
    if text in _JSON_WORDS:
        return text
    # A model may break a string over lines, which Python's literals may not.
    for spelling in (text, text.replace("\n", "\\n")):
        try:
            return json.dumps(ast.literal_eval(spelling), ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    raise NotACallError
