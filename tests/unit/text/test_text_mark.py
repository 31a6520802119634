"""A text is seen to come, however it is cut into tokens."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from trivium.execute.thinking import _MarkWatch
from trivium.text.text_mark import text_mark

MARK = "<ab><abc>"  # begins anew inside of itself
LETTERS = "<>abc"


def vocabulary(seed: int) -> list[bytes]:
    """All letters, pieces of the mark with and without neighbours, and other words."""
    draw = random.Random(seed)
    pieces = {MARK[first:end] for first in range(len(MARK)) for end in range(first + 1, len(MARK) + 1)}
    near = {
        draw.choice(LETTERS) * draw.randrange(2) + piece + draw.choice(LETTERS) * draw.randrange(2) for piece in pieces
    }
    words = {"".join(draw.choices(LETTERS, k=draw.randrange(1, 4))) for _ in range(20)}
    return [word.encode() for word in sorted({*LETTERS, *pieces, *near, *words, "é"})]


VOCABULARY = vocabulary(0)


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=24))
def test_a_mark_is_seen_with_the_token_that_makes_it_whole(tokens: list[int]) -> None:
    watch = _MarkWatch(text_mark(MARK, VOCABULARY))
    text = b""
    for token in tokens:
        text += VOCABULARY[token]
        assert watch.came_with(token) is (MARK.encode() in text)
        if MARK.encode() in text:
            return


@given(st.integers(0, 2**32), st.text(LETTERS, max_size=8), st.text(LETTERS, max_size=8))
def test_every_cut_of_a_text_with_the_mark_shows_it(seed: int, before: str, after: str) -> None:
    watch = _MarkWatch(text_mark(MARK, VOCABULARY))
    rest = (before + MARK + after).encode()
    draw = random.Random(seed)
    while rest:
        token = draw.choice([token for token, spelling in enumerate(VOCABULARY) if rest.startswith(spelling)])
        rest = rest.removeprefix(VOCABULARY[token])
        if watch.came_with(token):
            return
    raise AssertionError("it was not seen")


def test_what_is_told_of_a_mark_is_short() -> None:
    others = [f"word{i}".encode() for i in range(50_000)]
    mark = text_mark(MARK, [*VOCABULARY, *others])
    assert len(mark.ends) + len(mark.moves) < 300
