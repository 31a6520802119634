"""Answers that nobody reads while they grow are told in few deltas, and nothing of them is lost, changed or late."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.gathered_deltas import MOST_TOKENS, GatheredDeltas, joined
from trivium.types.delta import Delta, FinishReason
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs


def request(id: str, n: int = 1, *, is_told_whole: bool = True) -> Request:
    return Request(id, (1,), Sampling(seed=0), Stopping(max_tokens=1000), arrival=0.0, n=n, is_told_whole=is_told_whole)


def answer(id: str, index: int, num_tokens: int) -> list[Delta]:
    """Token by token; the last one ends it."""
    deltas = [
        Delta(id, index, (token,), (TokenLogprobs(token, -0.5, 1, ()),), num_cached_tokens=3 * (token == 0))
        for token in range(num_tokens)
    ]
    last = Delta(id, index, (num_tokens,), (TokenLogprobs(num_tokens, -0.5, 1, ()),), finish_reason=FinishReason.STOP)
    return [*deltas, last]


def told_of(gathered: GatheredDeltas, deltas: list[Delta]) -> list[Delta]:
    return [told for delta in deltas for told in gathered.to_tell([delta])]


def test_the_first_token_is_told_at_once_and_the_rest_with_the_last() -> None:
    gathered = GatheredDeltas()
    gathered.begin(request("a"))
    deltas = answer("a", 0, 20)
    first, rest = told_of(gathered, deltas)
    assert first == deltas[0]
    assert rest == joined(deltas[1:]) and rest.tokens == tuple(range(1, 21)) and len(rest.logprobs) == 20
    assert rest.finish_reason is FinishReason.STOP


def test_no_more_than_some_tokens_are_kept() -> None:
    gathered = GatheredDeltas()
    gathered.begin(request("a"))
    told = told_of(gathered, answer("a", 0, 3 * MOST_TOKENS))
    assert [len(delta.tokens) for delta in told] == [1, MOST_TOKENS, MOST_TOKENS, MOST_TOKENS]


def test_what_comes_before_the_first_token_is_told_as_it_comes() -> None:
    """Log probabilities of a long prompt come step by step, and the first token is known by when it came."""
    gathered = GatheredDeltas()
    gathered.begin(request("a"))
    entry = TokenLogprobs(7, -1.0, 1, ())
    deltas = [Delta("a", 0, prompt_logprobs=(entry,)), Delta("a", 0, prompt_logprobs=(entry,)), *answer("a", 0, 5)]
    told = told_of(gathered, deltas)
    assert told[:3] == deltas[:3] and len(told) == 4


def test_other_requests_are_told_step_by_step_meanwhile() -> None:
    gathered = GatheredDeltas()
    gathered.begin(request("whole"))
    gathered.begin(request("read", is_told_whole=False))
    whole, read = answer("whole", 0, 9), answer("read", 0, 9)
    told = [gathered.to_tell([one, other]) for one, other in zip(whole, read, strict=True)]
    assert [delta for step in told for delta in step if delta.request_id == "read"] == read
    assert [len(step) for step in told] == [2, *[1] * 8, 2]


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_an_end_that_has_no_token_brings_those_that_were_kept(reason: FinishReason) -> None:
    gathered = GatheredDeltas()
    gathered.begin(request("a"))
    told = told_of(gathered, [*answer("a", 0, 8)[:-1], Delta("a", 0, finish_reason=reason, error="why")])
    assert [delta.tokens for delta in told] == [(0,), tuple(range(1, 8))]
    assert told[-1].finish_reason is reason and told[-1].error == "why"


def test_an_id_that_was_forgotten_or_has_ended_may_be_used_again() -> None:
    gathered = GatheredDeltas()
    for end in ("forgotten", "ended"):
        gathered.begin(request("a"))
        deltas = answer("a", 0, 8)
        told_of(gathered, deltas[:4] if end == "forgotten" else deltas)
        if end == "forgotten":
            gathered.forget("a")
        gathered.begin(request("a", is_told_whole=False))
        assert told_of(gathered, deltas) == deltas


@given(st.lists(st.integers(0, 150), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_nothing_is_lost_or_told_in_another_order(lengths: list[int], random: object) -> None:
    gathered = GatheredDeltas()
    gathered.begin(request("a", n=len(lengths)))
    left = [iter(answer("a", index, length)) for index, length in enumerate(lengths)]
    told: list[Delta] = []
    while left:
        step = []
        for sequence in [*left]:
            if random.random() < 0.7:  # type: ignore[attr-defined]
                came = list(islice(sequence, 1))
                step += came
                if not came:
                    left.remove(sequence)
        told += gathered.to_tell(step)
    for index, length in enumerate(lengths):
        mine = [delta for delta in told if delta.index == index]
        assert joined(mine) == joined(answer("a", index, length))
        assert [delta.finish_reason is not None for delta in mine] == [False] * (len(mine) - 1) + [True]
