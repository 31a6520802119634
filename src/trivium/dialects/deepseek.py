"""DeepSeek V3, R1 and V3.1: a section of calls, each with its name before a separator."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trivium.dialects.calls import new_call_id, pass_json_arguments, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import Reading, Scanner

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE, FENCE_END = "```json\n", "\n```"


class DeepSeekCalls(Struct, frozen=True):
    """V3 and R1 say `function`, then the name and the arguments in a fence; V3.1 the name, then the bare arguments."""

    is_fenced: bool

    openers = (OPEN,)
    bare_openers = ""
    marks = (OPEN, CLOSE, CALL, SEPARATOR, CALL_END)

    @property
    def form(self) -> CallForm:
        begin = f"{CALL}function{SEPARATOR}{{name}}\n{FENCE}" if self.is_fenced else f"{CALL}{{name}}{SEPARATOR}"
        end = (FENCE_END if self.is_fenced else "") + CALL_END
        return CallForm(begin, end, before=OPEN, after=CLOSE, separator="\n" if self.is_fenced else "")

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        while True:
            yield from scanner.skip_any()
            yield from scanner.expect(CALL)
            yield from self._read_call(scanner, speech)
            yield from scanner.skip_any()
            if (yield from scanner.ends()) or (yield from scanner.try_take(CLOSE)):
                return

    def _read_call(self, scanner: Scanner, speech: Speech) -> Reading[None]:
        name = yield from read_name(scanner)
        yield from scanner.expect(SEPARATOR)
        yield from scanner.skip_any()
        if (yield from scanner.peek()) != "{":
            name = yield from read_name(scanner)
            yield from scanner.skip_any()
            yield from scanner.expect(FENCE.strip())
        yield from pass_json_arguments(scanner, speech, name)
        yield from scanner.skip_any()
        yield from scanner.try_take(FENCE_END.strip())
        yield from scanner.skip_any()
        if not (yield from scanner.ends()):
            yield from scanner.expect(CALL_END)

    def call_id(self) -> str:
        return new_call_id()
