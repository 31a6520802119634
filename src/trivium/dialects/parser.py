"""One answer of a model, read as it comes: text in, parts out."""

from __future__ import annotations

from collections.abc import Callable

from trivium.dialects.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from trivium.dialects.scanner import SPACE, Reading, Scanner
from trivium.faults import fault_point


class Speech:
    """What a reader has found so far. Space at the borders of passages belongs to the markup and is left out."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int | None]] = []  # of reasoning: first character, first after it (None: open)
        self.num_malformed = 0  # calls that could not be read as such
        self._parts: list[Part] = []
        self._number = -1  # of the last call
        self._in_call = False
        self._held = ""  # space that is text only if text follows
        self._at_border = False  # space that comes now is markup's

    def take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def content(self, text: str) -> None:
        self._passage(text, Content)

    def reasoning(self, text: str) -> None:
        self._passage(text, Reasoning)

    def border(self) -> None:
        """Markup stands here."""
        self._held = ""
        self._at_border = True

    def _passage(self, text: str, kind: type[Content] | type[Reasoning]) -> None:
        text = text.lstrip(SPACE) if self._at_border else self._held + text
        shown = text.rstrip(SPACE)
        self._held = text[len(shown) :]
        if shown:
            self._at_border = False
            self._parts.append(kind(shown))

    def open_reasoning(self, position: int) -> None:
        self.border()
        self.spans.append((position, None))

    def close_reasoning(self, position: int) -> None:
        self.border()
        self.spans[-1] = (self.spans[-1][0], position)

    def start_call(self, name: str, id: str | None = None) -> None:
        self.border()
        self._number += 1
        self._in_call = True
        self._parts.append(CallStart(self._number, name, id))

    def arguments(self, text: str) -> None:
        if text:
            self._parts.append(CallArguments(self._number, text))

    def end_call(self) -> None:
        self._in_call = False
        self._parts.append(CallEnd(self._number))

    def finish(self) -> None:
        if self._in_call:
            self.end_call()
        in_reasoning = bool(self.spans) and self.spans[-1][1] is None
        if self._held and not in_reasoning:
            self._parts.append(Content(self._held))

    def not_a_call(self, text: str, *, is_malformed: bool) -> None:
        """What looked like a call, or the rest of one, is content after all."""
        if self._in_call:
            self.end_call()
        self.num_malformed += is_malformed
        self.content(text)


Reader = Callable[[Scanner, Speech], Reading[None]]


class Parser:
    """The parts of all `feed`s and of `finish`, joined, are the same however the text was cut."""

    def __init__(self, reader: Reader) -> None:
        self._scanner = Scanner()
        self._speech = Speech()
        self._reading = reader(self._scanner, self._speech)
        self._go_on()

    @property
    def reasoning_spans(self) -> list[tuple[int, int]]:
        """First character of each passage of reasoning in the text, and the first after what was read of it."""
        here = self._scanner.position
        return [(first, here if end is None else end) for first, end in self._speech.spans]

    @property
    def num_malformed(self) -> int:
        """Calls that were begun and could not be read as such; what stood there was given as content."""
        return self._speech.num_malformed

    def feed(self, text: str) -> list[Part]:
        fault_point("dialects.feed")
        self._scanner.push(text)
        self._go_on()
        return self._speech.take()

    def finish(self) -> list[Part]:
        """What the text's end decides."""
        fault_point("dialects.finish")
        self._scanner.end()
        self._go_on()
        self._speech.finish()
        return self._speech.take()

    def _go_on(self) -> None:
        next(self._reading, None)
