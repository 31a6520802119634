"""Calls whose arguments stand each between tags of its own, as text: `<function=f><parameter=a>1</parameter></function>`.

Qwen 3 Coder writes them so; MiniMax, Seed-OSS and DeepSeek V3.2 with other tags.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trivium.dialects.calls import ObjectWriter, end_call, new_call_id, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_calls import json_form, read_calls
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner


class ParameterXmlCalls(Struct, frozen=True):
    open: str
    close: str
    function: str = "<function="  # followed by the name and `name_end`
    function_end: str = "</function>"
    parameter: str = "<parameter="  # followed by the name and one of the `key_ends`
    parameter_end: str = "</parameter>"
    name_end: str = ">"
    # What stands between a parameter's name and its value, and whether it says that the value is a string.
    key_ends: tuple[tuple[str, bool | None], ...] = ((">", None),)

    bare_openers = ""

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.open,)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close)

    @property
    def form(self) -> CallForm:
        """Forced calls are JSON, which is read here too: a schema is not told in tags."""
        return json_form(self.open, self.close)

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.skip_any()
        if (yield from scanner.peek()) == "{":
            yield from read_calls(scanner, speech, close=self.close)
            return
        while True:
            yield from scanner.skip_any()
            yield from self._read_call(scanner, speech, tools)
            yield from scanner.skip_any()
            if (yield from scanner.ends()) or (yield from scanner.try_take(self.close)):
                return

    def _read_call(self, scanner: Scanner, speech: Speech, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        yield from scanner.expect(self.function)
        name = yield from read_name(scanner)
        yield from scanner.expect(self.name_end)
        speech.start_call(name)
        scanner.keep()
        writer = ObjectWriter(speech, tools.get(name, {}))
        while True:
            yield from scanner.skip_any()
            if not (yield from scanner.try_take(self.parameter)):
                break
            key = yield from read_name(scanner)
            is_string = yield from self._read_key_end(scanner)
            writer.key(key)
            if not (yield from writer.pass_text(scanner, key, self.parameter_end, is_string=is_string)):
                return
            scanner.keep()
        yield from scanner.expect(self.function_end)
        writer.close()
        end_call(scanner, speech)

    def _read_key_end(self, scanner: Scanner) -> Reading[bool | None]:
        for end, is_string in self.key_ends:
            if (yield from scanner.try_take(end)):
                return is_string
        raise NotACallError

    def call_id(self) -> str:
        return new_call_id()
