"""Regular expressions: every answer matches in Python's own engine, and nothing that it uses is quietly dropped."""

from __future__ import annotations

import json
import re

import pytest
from walker import Walker

from trivium.grammar.regex import portable, portable_in_json, whole
from trivium.types.request import GrammarKind

PATTERNS = [
    r"\d{3}-\d{4}",
    r"^(yes|no)$",
    r"[a-z]{1,3}ing",
    r"[^\D5]+x",
    r"\w+@\w+\.(com|org)",
    r"[^\W\d]{2,5}",
    r"\S+\s\S+",
    r"[\s\S]{3}",
    r"(?i)hello",
    r"(?:ab|cd){2,3}?",
    r"a/b\/c",
    r"[]x]+",
    r"[^]x]",
    r"[[&~]{2}",
    r"äö?ü|[🙂-🙃]",
    r"\\\"'",
    r"\x41\u0042\t\n",
    r"a.c",
    r"",
]


@pytest.mark.filterwarnings("ignore:Possible nested set")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_answers_match_the_pattern(walker: Walker, pattern: str) -> None:
    prepared = walker.prepare(GrammarKind.REGEX, pattern)
    answers = [walker.write(prepared, seed) for seed in range(6)]
    assert any(answer is not None for answer in answers)
    for answer in answers:
        assert answer is None or re.fullmatch(pattern, answer), answer


JSON_PATTERNS = [
    r'^[^"]*$',
    r"^[^\\]*$",
    r'^"[^"\\]*"$',
    r"^[\x00-!#-~]*$",
    r"^[^x]$",
    r'[^"a][^"b]',
    r"^\S+$",
    r"^[^\n]+$",
]


@pytest.mark.parametrize("pattern", JSON_PATTERNS)
def test_patterns_hold_for_what_json_escapes(walker: Walker, pattern: str) -> None:
    """A class that leaves out quotes leaves out escaped quotes too."""
    schema = {"type": "string", "pattern": pattern, "maxLength": 6}
    prepared = walker.prepare(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    assert prepared.error is None
    for text in ['"', "\\", 'a"', "a\\b", '"x"', "\n", "\x01", "ab", "x", ""]:
        if len(text) <= 6 and walker.accepts(prepared, json.dumps(text)):
            assert re.search(pattern, text), text


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"a\b", r"(a)\1", r"(?<!x)y", "(", "[a", "a{3", "a{5,2}", "*", r"\p{Nope}"]
)
def test_a_pattern_that_cannot_be_obeyed_is_refused(walker: Walker, pattern: str) -> None:
    if pattern == "a{3":  # plain characters in Python, a mistake elsewhere
        walker.prepare(GrammarKind.REGEX, pattern)
        return
    assert "grammar" in walker.why_not(GrammarKind.REGEX, pattern)


def test_a_pattern_for_a_whole_text_needs_no_anchors() -> None:
    assert whole("^abc$") == whole(r"\Aabc\Z") == whole("abc") == "abc"
    assert whole(r"a\$") == r"a\$"
    assert whole(r"a\\$") == r"a\\"


def test_classes_mean_what_they_mean_everywhere() -> None:
    assert portable(r"\d[\d.]") == "[0-9][0-9.]"
    assert portable(r"[^\d]\D") == r"[^\d]\D"
    assert portable(r"\\d") == r"\\d"
    assert portable("[a[b&&c]") == r"[a\[b\&\&c]"
    assert portable("[") == "["
    assert portable_in_json('[^"]') == r'[[^"]&&[^\x00-\x1f\x7f]]'
    assert portable_in_json("[a-z]") == "[a-z]"
