"""Dialects in which reasoning and calls stand in the text between marks of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct

from trivium.dialects.calls import new_call_id
from trivium.dialects.dialect import CallForm, JsonSchema, Marks
from trivium.dialects.parser import Parser, Speech
from trivium.dialects.scanner import NotACallError, Reading, Scanner


class CallSyntax(Protocol):
    """How calls are written."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Marks of which each begins a call, or several, wherever it stands."""

    @property
    def bare_openers(self) -> str:
        """Characters that may begin a call where a passage begins, and have no meaning elsewhere."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Openers, closers and whatever else may be a token of its own."""

    @property
    def form(self) -> CallForm: ...

    def read(self, scanner: Scanner, speech: Speech, opener: str, tools: Mapping[str, JsonSchema]) -> Reading[None]:
        """Go past the call or calls after the opener, which was read; of a bare one, nothing was read.

        Raises NotACallError where it is none. What was read since the scanner's last `keep` is then content.
        """

    def call_id(self) -> str:
        """An id for a call that the model gave none."""


class TaggedDialect(Struct, frozen=True):
    name: str
    reasoning: Marks | None = None
    calls: CallSyntax | None = None

    @property
    def call_form(self) -> CallForm | None:
        return None if self.calls is None else self.calls.form

    @property
    def marks(self) -> tuple[str, ...]:
        reasoning = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        return reasoning + (() if self.calls is None else self.calls.marks)

    def parser(self, tools: Mapping[str, JsonSchema], *, in_reasoning: bool) -> Parser | None:
        if self.reasoning is None and (self.calls is None or not tools):
            return None
        return Parser(partial(self._read, tools=tools, in_reasoning=in_reasoning))

    def opens_reasoning(self, prompt: str, continued: str = "") -> bool:
        marks = self.reasoning
        if marks is None:
            return False
        return prompt.rstrip().endswith(marks.start) or continued.rfind(marks.start) > continued.rfind(marks.end)

    def call_id(self) -> str:
        return new_call_id() if self.calls is None else self.calls.call_id()

    def _read(
        self, scanner: Scanner, speech: Speech, tools: Mapping[str, JsonSchema], in_reasoning: bool
    ) -> Reading[None]:
        calls = self.calls if tools else None
        if in_reasoning and self.reasoning is not None:
            yield from _read_reasoning(scanner, speech, self.reasoning)
        at_border = True
        while not scanner.at_end:
            if at_border:
                at_border = yield from self._read_at_border(scanner, speech, calls, tools)
                continue
            openers = () if calls is None else calls.openers
            opener = yield from scanner.until(openers, speech.content)
            if calls is not None and opener:
                at_border = yield from _read_calls(scanner, speech, calls, opener, tools)

    def _read_at_border(
        self, scanner: Scanner, speech: Speech, calls: CallSyntax | None, tools: Mapping[str, JsonSchema]
    ) -> Reading[bool]:
        """What only counts where a passage begins; whether it was there, so that another passage begins."""
        scanner.keep()
        yield from scanner.skip_any()
        if self.reasoning is not None and (yield from scanner.try_take(self.reasoning.start)):
            yield from _read_reasoning(scanner, speech, self.reasoning)
            return True
        if calls is not None and (next_one := (yield from scanner.peek())) and next_one in calls.bare_openers:
            return (yield from _read_calls(scanner, speech, calls, "", tools))
        speech.content(scanner.kept())
        scanner.keep()
        return False


def _read_reasoning(scanner: Scanner, speech: Speech, marks: Marks) -> Reading[None]:
    scanner.keep()
    speech.open_reasoning(scanner.position)
    if (yield from scanner.until((marks.end,), speech.reasoning)):
        speech.close_reasoning(scanner.position - len(marks.end))


def _read_calls(
    scanner: Scanner, speech: Speech, calls: CallSyntax, opener: str, tools: Mapping[str, JsonSchema]
) -> Reading[bool]:
    """Whether there was a call."""
    try:
        yield from calls.read(scanner, speech, opener, tools)
    except NotACallError:
        speech.not_a_call(scanner.kept(), is_malformed=bool(opener))
        scanner.keep()
        return False
    speech.border()
    scanner.keep()
    return True
