"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, and many who follow them."""

from __future__ import annotations

from collections.abc import Mapping

from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_text import read_call
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import SPACE, Reading, Scanner
from trivium.dialects.tagged import new_call_id

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesCalls:
    openers = (OPEN,)
    bare_openers = ""
    marks = (OPEN, CLOSE)
    form = CallForm(begin=OPEN + '\n{"name": "{name}", "arguments": ', end="}\n" + CLOSE, separator="\n")

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.skip_any()
        yield from read_call(scanner, speech)
        yield from scanner.skip_any(SPACE + "}")  # a brace too many is no reason to show what stands around the call
        if not scanner.at_end:
            yield from scanner.expect(CLOSE)

    def call_id(self) -> str:
        return new_call_id()
