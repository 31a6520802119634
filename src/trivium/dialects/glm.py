"""GLM 4.5 and later: `<tool_call>f <arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping

from trivium.dialects.calls import LONGEST_NAME, ObjectWriter, end_call, new_call_id, read_name
from trivium.dialects.dialect import JsonSchema
from trivium.dialects.json_calls import json_form, read_calls
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"


class GlmCalls:
    openers = (OPEN,)
    bare_openers = ""
    marks = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)
    form = json_form(OPEN, CLOSE)  # forced calls are JSON, which is read here too

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.skip_any()
        if (yield from scanner.peek()) == "{":
            yield from read_calls(scanner, speech, close=CLOSE)
            return
        name = yield from read_name(scanner)
        yield from scanner.skip_any()
        if (yield from scanner.peek()) != "<":
            raise NotACallError
        speech.start_call(name)
        scanner.keep()
        writer = ObjectWriter(speech, tools.get(name, {}))
        while (yield from scanner.try_take(KEY)):
            pieces: list[str] = []
            yield from scanner.until((KEY_END,), pieces.append, keeps=True)
            key = "".join(pieces).strip()
            if not key or len(key) > LONGEST_NAME:
                raise NotACallError
            yield from scanner.skip_any()
            yield from scanner.expect(VALUE)
            writer.key(key)
            if not (yield from writer.pass_text(scanner, key, VALUE_END)):
                return
            scanner.keep()
            yield from scanner.skip_any()
        yield from scanner.expect(CLOSE)
        writer.close()
        end_call(scanner, speech)

    def call_id(self) -> str:
        return new_call_id()
