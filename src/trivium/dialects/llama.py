"""Llama 3: an answer that is `{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`, is a call.

Nothing else marks it, so only the functions on offer can be called.
"""

from __future__ import annotations

from collections.abc import Mapping

from trivium.dialects.calls import new_call_id, read_name
from trivium.dialects.dialect import CallForm, JsonSchema
from trivium.dialects.json_text import read_call
from trivium.dialects.parser import Speech
from trivium.dialects.pythonic import pass_keyword_arguments
from trivium.dialects.scanner import SPACE, NotACallError, Reading, Scanner

PYTHON_TAG = "<|python_tag|>"


class LlamaCalls:
    openers = (PYTHON_TAG,)
    bare_openers = "{"
    marks = (PYTHON_TAG,)
    form = CallForm('{"name": "{name}", "parameters": ', "}", separator="; ")

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        if opener and (yield from scanner.peek()) != "{":
            yield from self._read_built_in(scanner, speech, tools)
        else:
            yield from read_call(scanner, speech, only=tools)
        yield from scanner.skip_any(SPACE + ";")

    def _read_built_in(self, scanner: Scanner, speech: Speech, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        """`name.call(key="value")`, as the tools that Llama was trained with are called."""
        name = (yield from read_name(scanner)).removesuffix(".call")
        if name not in tools:
            raise NotACallError
        yield from scanner.expect("(")
        yield from pass_keyword_arguments(scanner, speech, name)

    def call_id(self) -> str:
        return new_call_id()
