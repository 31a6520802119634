"""Stop strings end a text at the same place however it is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.text.stops import StopStrings
from trivium.types.errors import InvalidRequestError

TEXTS = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def first_complete(text: str, stops: list[str], ignored: int = 0) -> tuple[int, int] | None:
    """By brute force: the first place after `ignored` characters where a stop string is complete, and the longest."""
    for end in range(ignored + 1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return start, end
    return None


@settings(max_examples=500)
@given(text=TEXTS, stops=STOPS, places=st.lists(st.integers(0, 100), max_size=8), include=st.booleans())
def test_any_cutting_finds_what_a_search_of_the_whole_text_finds(
    text: str, stops: list[str], places: list[int], include: bool
) -> None:
    search = StopStrings(stops, include_in_output=include)
    shown = "".join(search.feed(piece, number) for number, piece in enumerate(cut(text, places), 1)) + search.finish()
    match = first_complete(text, stops)
    if match is None:
        assert (shown, search.matched) == (text, None)
    else:
        start, end = match
        assert search.matched == text[start:end]
        assert shown == text[: end if include else start]


@settings(max_examples=500)
@given(text=TEXTS, stops=STOPS, places=st.lists(st.integers(0, 100), max_size=8), min_tokens=st.integers(0, 6))
def test_a_stop_string_within_the_first_min_tokens_is_text(
    text: str, stops: list[str], places: list[int], min_tokens: int
) -> None:
    pieces = cut(text, places)
    search = StopStrings(stops, min_tokens=min_tokens)
    shown = "".join(search.feed(piece, number) for number, piece in enumerate(pieces, 1)) + search.finish()
    match = first_complete(text, stops, ignored=len("".join(pieces[:min_tokens])))
    assert shown == (text if match is None else text[: match[0]])
    assert search.matched == (None if match is None else text[match[0] : match[1]])


@settings(max_examples=500)
@given(text=TEXTS, stops=STOPS, places=st.lists(st.integers(0, 100), max_size=8))
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str], places: list[int]) -> None:
    search = StopStrings(stops)
    shown = come = ""
    for number, piece in enumerate(cut(text, places), 1):
        shown += search.feed(piece, number)
        come += piece
        if search.matched is not None:
            return
        beginnings = [n for n in range(len(come) + 1) if any(s.startswith(come[-n:]) and n < len(s) for s in stops)]
        assert len(come) - len(shown) == max([n for n in beginnings if n], default=0)


def test_nothing_comes_after_a_match() -> None:
    search = StopStrings(["END"])
    assert search.feed("text E", 1) == "text "
    assert search.feed("ND more", 2) == ""
    assert search.feed("and more", 3) == ""
    assert search.finish() == ""
    assert search.matched == "END"


def test_the_stop_string_complete_first_wins_over_one_that_began_earlier() -> None:
    search = StopStrings(["abcd", "bc"])
    assert search.feed("abcd", 1) == "a"
    assert search.matched == "bc"


def test_without_stop_strings_all_text_passes() -> None:
    search = StopStrings([])
    assert search.feed("anything", 1) == "anything"
    assert search.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must not be empty"):
        StopStrings(["ok", ""])
