"""Kimi K2: a section of calls, each begun by the id that the model gives it, `functions.f:0`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trivium.dialects.calls import new_call_id, pass_json_arguments, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner

OPEN, CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


class KimiCalls:
    openers = (OPEN,)
    bare_openers = ""
    marks = (OPEN, CLOSE, CALL, ARGUMENTS, CALL_END)
    form = CallForm(f"{CALL}functions.{{name}}:0{ARGUMENTS}", CALL_END, before=OPEN, after=CLOSE)

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        while True:
            yield from scanner.skip_any()
            yield from scanner.expect(CALL)
            yield from scanner.skip_any()
            id = yield from read_name(scanner)
            found = _ID.fullmatch(id)
            if found is None:
                raise NotACallError
            yield from scanner.skip_any()
            yield from scanner.expect(ARGUMENTS)
            yield from pass_json_arguments(scanner, speech, found["name"], id)
            yield from scanner.skip_any()
            if (yield from scanner.ends()):
                return
            yield from scanner.expect(CALL_END)
            yield from scanner.skip_any()
            if (yield from scanner.ends()) or (yield from scanner.try_take(CLOSE)):
                return

    def call_id(self) -> str:
        return new_call_id()
