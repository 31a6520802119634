"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and since 2025 `[TOOL_CALLS]f[ARGS]{…}` for each call."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping

from msgspec import Struct

from trivium.dialects.calls import pass_json_arguments, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_calls import JSON_BEGIN, read_calls
from trivium.dialects.parser import Speech
from trivium.dialects.scanner import Reading, Scanner

OPEN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
ID_CHARS = 9  # templates refuse any other length, and all but letters and digits
_ID = re.compile(r"[0-9A-Za-z]")


class MistralCalls(Struct, frozen=True):
    is_list: bool  # the older form

    openers = (OPEN,)
    bare_openers = ""
    marks = (OPEN, CALL_ID, ARGS)

    @property
    def form(self) -> CallForm:
        if self.is_list:
            return CallForm(JSON_BEGIN, "}", before=f"{OPEN}[", after="]", separator=", ")
        return CallForm(OPEN + "{name}" + ARGS, "")

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        """Both forms, whichever is the model's own."""
        yield from scanner.skip_any()
        if (yield from scanner.peek()) in ("[", "{"):
            yield from read_calls(scanner, speech)
            return
        name = yield from read_name(scanner)
        id = None
        if (yield from scanner.try_take(CALL_ID)):
            id = yield from scanner.take_while(_ID, ID_CHARS)
        yield from scanner.expect(ARGS)
        yield from pass_json_arguments(scanner, speech, name, id)

    def call_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_CHARS))
