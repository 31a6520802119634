"""Text that comes in pieces, read as if it were there: a reader is a generator that yields while text is lacking.

What a reader does with a text must not depend on how it was cut. The methods here see to that: each decides only on
what no further text can change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = " \t\r\n"


class NotACallError(Exception):
    """What looked like a call is none: it is text."""


class Scanner:
    def __init__(self) -> None:
        self._text = ""  # from the kept position on
        self._cursor = 0  # what comes before it has been read
        self._dropped = 0  # characters that came before `_text`
        self._ended = False

    # For the one that brings the text

    def push(self, text: str) -> None:
        self._text += text

    def end(self) -> None:
        self._ended = True

    # Where the reader is

    @property
    def position(self) -> int:
        """Characters read."""
        return self._dropped + self._cursor

    @property
    def at_end(self) -> bool:
        """Whether all has been read, as far as is known without waiting."""
        return self._ended and self._cursor == len(self._text)

    def keep(self) -> None:
        """From here on the text is kept, until the next `keep`: it may be wanted back."""
        self._text = self._text[self._cursor :]
        self._dropped += self._cursor
        self._cursor = 0

    def kept(self) -> str:
        """What was read since `keep`."""
        return self._text[: self._cursor]

    # Reading

    def peek(self, count: int = 1) -> Reading[str]:
        """The next characters, fewer only at the end of the text."""
        while len(self._text) - self._cursor < count and not self._ended:
            yield
        return self._text[self._cursor : self._cursor + count]

    def ends(self) -> Reading[bool]:
        """Whether nothing more will come."""
        return not (yield from self.peek())

    def skip(self, count: int) -> None:
        """Go past what was peeked at."""
        self._cursor += count

    def skip_any(self, characters: str = SPACE) -> Reading[None]:
        while (next_one := (yield from self.peek())) and next_one in characters:
            self._cursor += 1

    def try_take(self, literal: str) -> Reading[bool]:
        """Go past the literal if it is what comes next."""
        for length in range(1, len(literal) + 1):
            if (yield from self.peek(length)) != literal[:length]:
                return False
        self._cursor += len(literal)
        return True

    def expect(self, literal: str) -> Reading[None]:
        if not (yield from self.try_take(literal)):
            raise NotACallError

    def take_while(self, pattern: re.Pattern[str], most: int) -> Reading[str]:
        """The longest run of characters that each match the pattern; longer than `most` is no call."""
        start = self._cursor
        while (next_one := (yield from self.peek())) and pattern.match(next_one):
            self._cursor += 1
            if self._cursor - start > most:
                raise NotACallError
        return self._text[start : self._cursor]

    def hand_on(self, count: int, sink: Sink, keeps: bool = False) -> None:
        """Go past characters that are there, and give them to the sink; they are not kept unless `keeps`."""
        if count:
            text = self._text[self._cursor : self._cursor + count]
            self._cursor += count
            if not keeps:
                self.keep()
            sink(text)

    def until(self, marks: Sequence[str], sink: Sink, keeps: bool = False) -> Reading[str]:
        """Hand on the text before the first mark, and go past the mark and return it; "" at the end of the text.

        No mark may be a part of another. Only an end of the text that may become a mark is held back.
        """
        search = _search(tuple(marks))
        while True:
            found = search.pattern.search(self._text, self._cursor)
            if found:
                self.hand_on(found.start() - self._cursor, sink, keeps)
                if not keeps:
                    self.keep()
                self._cursor += len(found[0])
                return found[0]
            held = 0 if self._ended else search.held_back(self._text, self._cursor)
            self.hand_on(len(self._text) - self._cursor - held, sink, keeps)
            if self._ended:
                return ""
            yield


class _Search:
    def __init__(self, marks: tuple[str, ...]) -> None:
        self._marks = marks
        self._longest = max(map(len, marks), default=1)
        self.pattern = re.compile("|".join(map(re.escape, marks)) or "(?!)")

    def held_back(self, text: str, start: int) -> int:
        """Length of the longest end of the text, after `start`, that a mark begins with."""
        for length in range(min(self._longest - 1, len(text) - start), 0, -1):
            end = text[-length:]
            if any(mark.startswith(end) for mark in self._marks):
                return length
        return 0


@lru_cache(maxsize=256)
def _search(marks: tuple[str, ...]) -> _Search:
    return _Search(marks)
