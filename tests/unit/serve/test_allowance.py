"""What a key's holder may have, on a clock that the test turns."""

from __future__ import annotations

import asyncio
import random

import pytest

from trivium.serve.access.allowance import Allowance, Rates, duration
from trivium.serve.access.caller import ANYBODY, Caller
from trivium.types.errors import RateLimitedError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused_for(allowance: Allowance) -> float | None:
    """Seconds to wait; None: it was let in, and has ended."""
    try:
        with allowance.request():
            return None
    except RateLimitedError as error:
        return error.retry_after


def test_who_waits_as_long_as_told_is_let_in_and_not_sooner() -> None:
    clock, draw = Clock(), random.Random(1)
    allowance = Allowance("a", Rates(requests_per_minute=7, tokens_per_minute=50), clock)
    admitted = 0
    for _ in range(500):
        wait = refused_for(allowance)
        if wait is not None:
            clock.now += wait * 0.98
            assert refused_for(allowance) is not None
            clock.now += wait * 0.02 + 1e-6
            assert refused_for(allowance) is None
        admitted += 1
        allowance.charge(draw.randrange(20))
    # Over a long time the mean rate is what the limits say, whichever of the two binds.
    minutes = (clock.now - 1000.0) / 60
    assert admitted <= 7 * (minutes + 1) + 1


def test_tokens_that_were_overdrawn_are_waited_for() -> None:
    clock = Clock()
    allowance = Allowance("a", Rates(tokens_per_minute=60), clock)
    assert refused_for(allowance) is None
    allowance.charge(180)
    assert refused_for(allowance) == pytest.approx(121)
    assert allowance.headers() == {
        "x-ratelimit-limit-tokens": "60",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "3m0s",
    }


def test_places_come_back_however_a_request_ends() -> None:
    allowance = Allowance("a", Rates(concurrent_requests=2), Clock())
    with allowance.request():
        with pytest.raises(ValueError), allowance.request():
            raise ValueError
        with allowance.request():
            assert refused_for(allowance) is not None
        assert refused_for(allowance) is None


def test_the_wait_for_a_place_follows_from_how_long_requests_take() -> None:
    clock = Clock()
    allowance = Allowance("a", Rates(concurrent_requests=1), clock)
    for _ in range(100):
        with allowance.request():
            clock.now += 8.0
    with allowance.request():
        assert refused_for(allowance) == pytest.approx(8.0, rel=0.01)


def test_new_rates_do_not_give_back_what_was_used() -> None:
    clock = Clock()
    allowance = Allowance("a", Rates(requests_per_minute=2), clock)
    assert [refused_for(allowance) for _ in range(2)] == [None, None]
    allowance.change(Rates(requests_per_minute=3))
    assert refused_for(allowance) is None
    assert refused_for(allowance) == pytest.approx(20)
    allowance.change(Rates())
    assert refused_for(allowance) is None
    assert allowance.headers() == {}


def test_requests_of_a_batch_are_counted_and_leave_half_of_a_minute_to_the_others() -> None:
    async def story() -> None:
        clock = Clock()
        allowance = Allowance("a", Rates(requests_per_minute=6), clock)
        for left in (6, 5, 4, 3):
            assert allowance.seconds_until_batch() == 0
            assert allowance.headers()["x-ratelimit-remaining-requests"] == str(left)
            (await allowance.batch_turn()).end()
        assert allowance.seconds_until_batch() == pytest.approx(10)  # one every 10 s
        assert [refused_for(allowance) for _ in range(2)] == [None, None]
        assert refused_for(allowance) is not None
        assert allowance.seconds_until_batch() == pytest.approx(30)

    asyncio.run(story())


def test_tokens_of_a_batch_are_waited_for_until_half_of_a_minute_is_there() -> None:
    async def story() -> None:
        clock = Clock()
        allowance = Allowance("a", Rates(tokens_per_minute=60), clock)
        turn = await allowance.batch_turn()
        allowance.charge(100)
        turn.num_tokens = 100
        turn.end()
        assert allowance.seconds_until_batch() == pytest.approx(70)
        clock.now += 70
        assert allowance.seconds_until_batch() == 0

    asyncio.run(story())


def test_what_requests_of_a_batch_use_is_tried_with_one_and_then_reckoned_with() -> None:
    async def story() -> None:
        allowance = Allowance("a", Rates(tokens_per_minute=1000), Clock())
        first = await allowance.batch_turn()
        assert allowance.seconds_until_batch() == float("inf")
        first.num_tokens = 100
        first.end()
        turns = []
        while allowance.seconds_until_batch() == 0:
            turns.append(await allowance.batch_turn())
        assert len(turns) == 6  # five are reckoned with 500, the other 500 are kept, and the last may go beyond
        assert allowance.seconds_until_batch() == float("inf")
        turns.pop().end()
        assert allowance.seconds_until_batch() == 0

    asyncio.run(story())


def test_requests_of_a_batch_wait_for_a_place_and_take_none_from_others() -> None:
    async def story() -> None:
        allowance = Allowance("a", Rates(concurrent_requests=1), Clock())
        turn = await allowance.batch_turn()
        assert refused_for(allowance) is None
        waiting = asyncio.create_task(allowance.batch_turn())
        await asyncio.sleep(0)
        assert not waiting.done()
        turn.end()
        (await asyncio.wait_for(waiting, 30)).end()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0ms"), (0.0204, "20ms"), (1.5, "1.5s"), (59.9994, "59.999s"), (360, "6m0s"), (90.4, "1m30s")],
)
def test_durations_are_written_as_openai_does(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_request_may_lower_its_keys_priority_but_not_raise_it() -> None:
    late = Caller(name="late", priority=10)
    assert [late.priority_of(asked) for asked in (None, -5, 0, 10, 11)] == [10, 10, 10, 10, 11]
    early = Caller(name="early", priority=-10)
    assert [early.priority_of(asked) for asked in (None, -20, 0)] == [-10, -10, 0]
    assert [ANYBODY.priority_of(asked) for asked in (None, -5, 5)] == [0, -5, 5]
