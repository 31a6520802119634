"""Reasoning held to a budget."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.execute.thinking import ThinkingWatch
from trivium.text.text_mark import text_mark
from trivium.types.request import ThinkingBudget

WORDS = ["<begin", ">", "<", "/", "end", ">\n", "</end>", "a", "b", "c", "d", "go", "</"]
VOCABULARY = [word.encode() for word in WORDS]


def ids(text: str) -> list[int]:
    """Of words with spaces between them."""
    return [WORDS.index(word.replace("~", "\n")) for word in text.split()]


def budget(max_tokens: int, *, begun: bool, goes_on: str = "go") -> ThinkingBudget:
    begin = None if begun else text_mark("<begin>", VOCABULARY)
    return ThinkingBudget(max_tokens, begin, text_mark("</end>", VOCABULARY), tuple(ids("</end> " + goes_on)))


OPENED = budget(3, begun=True)
BEGUN = budget(3, begun=False)


def generate(budget: ThinkingBudget, own: str, banned: dict[int, str] | None = None) -> str:
    """The model would say `own`, from wherever it is left to itself. `banned`: at which length a grammar forbids what."""
    tokens: list[int] = []
    rest = iter(ids(own))
    watch = ThinkingWatch(budget)
    while True:
        generated = np.array(tokens, dtype=np.int64)
        forced = watch.forced_token(generated)
        assert ThinkingWatch(budget).forced_token(generated) == forced  # as a row that resumes would have it
        if forced is not None and WORDS[forced] == (banned or {}).get(len(tokens)):
            forced = None
        token = forced if forced is not None else next(rest, None)
        if token is None:
            return " ".join(WORDS[token].replace("\n", "~") for token in tokens)
        tokens.append(token)


def test_what_the_prompt_began_is_ended_after_the_budget() -> None:
    assert generate(OPENED, "a b c d a b") == "a b c </end> go d a b"


def test_what_the_model_began_is_counted_from_there() -> None:
    assert generate(BEGUN, "d <begin > a b c d a") == "d <begin > a b c </end> go d a"


@pytest.mark.parametrize(
    "own",
    [
        "a </end> go b c d a",
        "a </end> b c d a b a",
        "</end> c c c",
        "</ end > a b c d",
        "a </ end >~ b c",
        "< / end > d",
    ],
)
def test_reasoning_that_ends_by_itself_in_any_spelling_is_left_alone(own: str) -> None:
    assert generate(budget(4, begun=True), own) == own


def test_an_answer_without_reasoning_is_left_alone() -> None:
    assert generate(BEGUN, "a b c d a b c") == "a b c d a b c"


def test_a_budget_of_nothing_ends_it_at_once() -> None:
    assert generate(budget(0, begun=True, goes_on=""), "a b") == "</end> a b"


def test_the_answer_may_hold_the_closing_tokens_again() -> None:
    assert generate(OPENED, "a b c </end> go </end>") == "a b c </end> go </end> go </end>"


def test_where_a_grammar_forbids_the_end_it_comes_as_soon_as_it_may() -> None:
    assert generate(OPENED, "a b c d a b", banned={3: "</end>", 4: "</end>"}) == "a b c d a </end> go b"


def test_where_the_end_came_but_not_what_leads_on_the_answer_is_left_alone() -> None:
    assert generate(OPENED, "a b c d a b", banned={4: "go"}) == "a b c </end> d a b"
