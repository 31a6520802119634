"""Gemma 4 and FunctionGemma: `call:f{a:1,b:"text"}` between marks, where a token of its own stands for the quote."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from trivium.dialects.calls import LONGEST_NAME, as_json, end_call, new_call_id, quoted, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_text import read_string
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner

_KEY = re.compile(r"[^:,{}\[\]\"<\s]")
_IN_SCALAR = re.compile(r"[^,{}\[\]]")
DEEPEST = 64  # of lists and objects in one another


class GemmaCalls(Struct, frozen=True):
    open: str
    close: str
    quote: str

    bare_openers = ""

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.open,)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close, self.quote)

    @property
    def form(self) -> CallForm:
        """Forced calls have their arguments in JSON, which is read here too."""
        return CallForm(self.open + "call:{name}", self.close)

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.expect("call:")
        name = yield from read_name(scanner)
        yield from scanner.skip_any()
        if (yield from scanner.peek()) != "{":
            raise NotACallError
        speech.start_call(name)
        scanner.keep()
        if not (yield from self._pass_object(scanner, speech)):
            return
        end_call(scanner, speech)
        yield from scanner.skip_any()
        if not (yield from scanner.ends()):
            yield from scanner.expect(self.close)

    def _pass_value(self, scanner: Scanner, speech: Speech, depth: int) -> Reading[bool]:
        """As JSON, while it comes. False: the text ended first."""
        if depth > DEEPEST:
            raise NotACallError
        scanner.keep()
        yield from scanner.skip_any()
        if (yield from scanner.try_take(self.quote)):
            return (yield from self._pass_string(scanner, speech))
        match (yield from scanner.peek()):
            case "{":
                return (yield from self._pass_object(scanner, speech, depth))
            case "[":
                return (yield from self._pass_list(scanner, speech, depth))
            case '"':
                speech.arguments(quoted((yield from read_string(scanner))))
                return True
        text = yield from scanner.take_while(_IN_SCALAR, most=LONGEST_NAME)
        if not (yield from scanner.peek()):
            return False
        speech.arguments(as_json(text.strip(), None))
        return True

    def _pass_string(self, scanner: Scanner, speech: Speech) -> Reading[bool]:
        speech.arguments('"')
        ended = yield from scanner.until((self.quote,), lambda text: speech.arguments(quoted(text)[1:-1]))
        if ended:
            speech.arguments('"')
        return bool(ended)

    def _pass_object(self, scanner: Scanner, speech: Speech, depth: int = 0) -> Reading[bool]:
        yield from scanner.expect("{")
        speech.arguments("{")
        separator = ""
        while not (yield from _take_end(scanner, "}", is_first=not separator)):
            if (yield from scanner.ends()):
                return False
            key = yield from self._read_key(scanner)
            yield from scanner.skip_any()
            yield from scanner.expect(":")
            speech.arguments(f"{separator}{quoted(key)}: ")
            separator = ", "
            if not (yield from self._pass_value(scanner, speech, depth + 1)):
                return False
        speech.arguments("}")
        return True

    def _pass_list(self, scanner: Scanner, speech: Speech, depth: int) -> Reading[bool]:
        yield from scanner.expect("[")
        speech.arguments("[")
        separator = ""
        while not (yield from _take_end(scanner, "]", is_first=not separator)):
            if (yield from scanner.ends()):
                return False
            speech.arguments(separator)
            separator = ", "
            if not (yield from self._pass_value(scanner, speech, depth + 1)):
                return False
        speech.arguments("]")
        return True

    def _read_key(self, scanner: Scanner) -> Reading[str]:
        if (yield from scanner.peek()) == '"':
            return (yield from read_string(scanner))
        if (yield from scanner.try_take(self.quote)):
            pieces: list[str] = []
            yield from scanner.until((self.quote,), pieces.append, keeps=True)
            return "".join(pieces)
        key = yield from scanner.take_while(_KEY, LONGEST_NAME)
        if not key:
            raise NotACallError
        return key

    def call_id(self) -> str:
        return new_call_id()


def _take_end(scanner: Scanner, end: str, *, is_first: bool) -> Reading[bool]:
    """Go past the end of a list or an object, or else past the comma before its next member."""
    yield from scanner.skip_any()
    if (yield from scanner.try_take(end)):
        return True
    if not is_first and not (yield from scanner.ends()):
        yield from scanner.expect(",")
        yield from scanner.skip_any()
        return (yield from scanner.try_take(end))  # after a comma too many
    return False
