"""What is known of a way of writing reasoning and tool calls: how to read it, and how to make a model write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from trivium.dialects.parser import Parser

JsonSchema = Mapping[str, Any]


class Marks(Struct, frozen=True):
    """What stands before and after a passage."""

    start: str
    end: str
    goes_on: str = ""  # after the end: what the model writes before its answer


class CallForm(Struct, frozen=True):
    """How calls are written, exactly enough that a grammar can force them.

    all of them = before, call, (separator, call)*, after; a call = begin, arguments, end, where `{name}` in `begin`
    stands for the function's name. The arguments are JSON of the function's schema: what a dialect cannot say in JSON by
    itself, its parser reads in JSON too.
    """

    begin: str
    end: str
    before: str = ""
    after: str = ""
    separator: str = ""
    lead: str = ""  # may stand before all of them

    def begin_of(self, name: str) -> str:
        return self.begin.replace("{name}", name)


class Dialect(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def reasoning(self) -> Marks | None:
        """What encloses reasoning; None: the model does not mark any."""

    @property
    def call_form(self) -> CallForm | None:
        """None: no tools can be used in this dialect."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All that is looked for in the text. Those that are special tokens must stay in it."""

    def parser(self, tools: Mapping[str, JsonSchema], *, in_reasoning: bool) -> Parser | None:
        """Reads one answer; None: there is nothing to look for. `tools` are the functions on offer with the schemas of
        their arguments; without any, calls are plain text. `in_reasoning`: the prompt ended inside of reasoning."""

    def opens_reasoning(self, prompt: str, continued: str = "") -> bool:
        """Whether the prompt ends inside of reasoning. `continued`: words at its end that are the model's own."""

    def call_id(self) -> str:
        """An id for a call that the model gave none."""
