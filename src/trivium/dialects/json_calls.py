"""Calls that are objects of JSON with a name and arguments, one or several between marks.

`<tool_call>{"name": …, "arguments": {…}}</tool_call>` is how Hermes, Qwen 2.5 and 3, and many who follow them call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from trivium.dialects.calls import new_call_id
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_text import read_call
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import SPACE, Reading, Scanner

JSON_BEGIN = '{"name": "{name}", "arguments": '


class JsonCalls(Struct, frozen=True):
    open: str
    close: str  # "" where the end of the answer ends the calls
    is_list: bool = False  # the calls are written as a list, and may be many

    bare_openers = ""

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.open,)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close) if self.close else (self.open,)

    @property
    def form(self) -> CallForm:
        if self.is_list:
            return CallForm(JSON_BEGIN, "}", before=f"{self.open}[", after=f"]{self.close}", separator=", ")
        return json_form(self.open, self.close)

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.skip_any()
        yield from read_calls(scanner, speech, close=self.close)

    def call_id(self) -> str:
        return new_call_id()


def json_form(open: str, close: str) -> CallForm:
    """Each call by itself between the marks."""
    return CallForm(f"{open}\n{JSON_BEGIN}", f"}}\n{close}", separator="\n")


def read_calls(
    scanner: Scanner, speech: Speech, only: Collection[str] | None = None, *, close: str = ""
) -> Reading[None]:
    """One call, or a list of them, or one after another, and the mark that closes them."""
    is_list = yield from scanner.try_take("[")
    while True:
        yield from scanner.skip_any()
        yield from read_call(scanner, speech, only)
        yield from scanner.skip_any(SPACE + "," if is_list else SPACE)
        if (yield from scanner.peek()) != "{":
            break
    if is_list:
        yield from scanner.try_take("]")
    # A brace too many is no reason to show what stands around the calls, nor is an end that does not come.
    yield from scanner.skip_any(SPACE + "}")
    if close and not (yield from scanner.ends()):
        yield from scanner.expect(close)
