"""Regular expressions as people write them, in the syntax and with the meaning that the matcher has for them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

# Python's re, ECMAScript and Rust differ in whether these know letters beyond ASCII. The smallest set is in all of them;
# of a negated one, that is what the matcher takes it for: the complement of the largest.
_SMALLEST = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t-\r "}

_CONTROL = [chr(code) for code in (*range(0x20), 0x7F)]
_WITHOUT_CONTROL = r"&&[^\x00-\x1f\x7f]"


def portable(pattern: str) -> str:
    """What matches it matches `pattern` in Python, in ECMAScript and in Rust."""
    return "".join(piece for piece, _ in _pieces(pattern))


def portable_in_json(pattern: str) -> str:
    """The same for a string that is written as JSON.

    In a class that has some characters that JSON escapes, the matcher allows all escapes. One that leaves out quotes or
    backslashes must therefore leave out control characters too.
    """
    return "".join(
        f"[{piece}{_WITHOUT_CONTROL}]" if written and _must_lose_control(written) else piece
        for piece, written in _pieces(pattern)
    )


def whole(pattern: str) -> str:
    """For a text that must match from its beginning to its end: anchors there say nothing more."""
    pattern = pattern.removeprefix(r"\A").removeprefix("^")
    for end in (r"\Z", r"\z"):
        pattern = pattern.removesuffix(end)
    if pattern.endswith("$") and not _is_escaped(pattern, len(pattern) - 1):
        pattern = pattern[:-1]
    return pattern


def _is_escaped(pattern: str, place: int) -> bool:
    before = pattern[:place]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _must_lose_control(written: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):  # of a bracket in a class, which may one day mean more
            matches = re.compile(written).match
    except re.error:  # a class that only the matcher knows
        return True
    return not (matches('"') and matches("\\")) and any(map(matches, _CONTROL))


def _pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """(text for the matcher, the class that it was or nothing); the texts joined are the pattern."""
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\" and i + 1 < len(pattern):
            letter = pattern[i + 1]
            yield (f"[{_SMALLEST[letter]}]" if letter in _SMALLEST else _escape(letter)), ""
            i += 2
        elif char == "[":
            end = _end_of_class(pattern, i)
            written = pattern[i:end]
            yield (_class(written), written) if end <= len(pattern) else (written, "")
            i = end
        else:
            yield char, ""
            i += 1


def _end_of_class(pattern: str, start: int) -> int:
    """One past the bracket that closes the class, or beyond the pattern where none does. A bracket that comes first in
    it is a plain character."""
    i = start + 1
    if pattern[i : i + 1] == "^":
        i += 1
    if pattern[i : i + 1] == "]":
        i += 1
    while i < len(pattern) and pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i + 1


def _class(text: str) -> str:
    """Rust knows nested classes and operations on them; elsewhere their signs are plain characters."""
    negated = text.startswith("[^")
    opening = "[^" if negated else "["
    inside = text[len(opening) : -1]
    if inside.startswith("]"):
        inside = "\\" + inside
    pieces = []
    i = 0
    while i < len(inside):
        char = inside[i]
        if char == "\\" and i + 1 < len(inside):
            pieces.append(_class_escape(inside[i + 1], negated))
            i += 2
            continue
        pieces.append(f"\\{char}" if char in "[&~" else char)
        i += 1
    return f"{opening}{''.join(pieces)}]"


def _class_escape(letter: str, negated: bool) -> str:
    if negated and letter.lower() in _SMALLEST and letter.isupper():  # what is negated twice is not negated
        return f"[^{_SMALLEST[letter.lower()]}]"
    return _SMALLEST[letter] if letter in _SMALLEST and not negated else _escape(letter)


def _escape(letter: str) -> str:
    return letter if letter in "/'\"" else f"\\{letter}"
