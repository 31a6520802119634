from __future__ import annotations

import random
from itertools import pairwise

import pytest
from crowd import Crowd

from trivium.engine.appointments import GRACE_SECONDS, LEAST_ATTENDANCE, MOST_SECONDS, PATIENCE, SHARE, Appointments


def test_times_lie_as_far_apart_as_ends_with_some_slack() -> None:
    book = Appointments()
    told = [book.give(visitor, 100.0, between_ends=0.5, lead=2.0) for visitor in range(4)]
    assert told == pytest.approx([2.0 + number * 0.5 / SHARE for number in range(4)])


def test_who_comes_at_its_time_is_known_once() -> None:
    book = Appointments()
    book.give(7, 0.0, between_ends=1.0, lead=5.0)
    assert not book.is_due(7, 4.0)
    assert not book.is_due(8, 5.0)
    assert book.is_due(7, 5.0)
    book.keep(7)
    assert not book.is_due(7, 5.0)
    assert (book.num_kept, book.num_missed, len(book)) == (1, 0, 0)


def test_those_who_ask_the_same_have_a_time_each() -> None:
    book = Appointments()
    first, second = (book.give(7, 0.0, between_ends=1.0, lead=5.0) for _ in range(2))
    assert second > first
    book.keep(7)
    assert not book.is_due(7, first)
    assert book.is_due(7, second)


def test_a_time_that_passes_unused_is_missed() -> None:
    book = Appointments()
    book.give(7, 0.0, between_ends=1.0, lead=5.0)
    assert book.num_expected(0.0, 5.0) == 1.0
    assert book.is_due(7, 5.0 + GRACE_SECONDS)
    assert not book.is_due(7, 5.1 + GRACE_SECONDS)
    assert (book.num_missed, book.num_expected(8.5, 1e9)) == (1, 0.0)


def test_a_crowd_that_left_is_soon_not_waited_for() -> None:
    book = Appointments()
    spacing = 0.5 / SHARE
    for visitor in range(200):
        book.give(visitor, 0.0, between_ends=0.5, lead=2.0)
    missed_by = 2.0 + GRACE_SECONDS + 0.001  # the first
    assert book.num_expected(missed_by + (PATIENCE - 1) * spacing, 1e9) > 150  # some are always late
    ten_missed = missed_by + 9 * spacing
    assert book.num_missed == PATIENCE and book.num_expected(ten_missed, 1e9) < 200 / 8
    assert book.num_missed == 10
    book.keep(10)  # somebody came after all, and so may the others
    assert book.num_expected(ten_missed, 1e9) > 80


def test_where_few_come_back_times_lie_closer() -> None:
    book = Appointments()
    now = 0.0
    for visitor in range(1000):
        now += 1.0
        book.give(visitor, now, between_ends=1.0, lead=1.0)
    assert book.attendance == LEAST_ATTENDANCE
    assert book.give(2000, now, between_ends=1.0, lead=1.0) < 3.0


def test_nobody_is_told_to_wait_for_ever_and_those_beyond_come_back_spread() -> None:
    book = Appointments()
    told = [book.give(visitor, 0.0, between_ends=1.0, lead=1.0) for visitor in range(3000)]
    assert max(told) <= MOST_SECONDS
    beyond = sorted(told[-1000:])
    assert beyond[0] < 0.51 * MOST_SECONDS and beyond[-1] > 0.99 * MOST_SECONDS
    assert max(later - earlier for earlier, later in pairwise(beyond)) < 2.0
    assert len(book) < 1000


def test_a_place_that_is_slow_to_come_is_told_as_it_is() -> None:
    assert Appointments().give(1, 0.0, between_ends=2000.0, lead=2000.0) == 2000.0


SERVICES = {
    "of one length": lambda draw: 2.0,
    "of all lengths": lambda draw: draw.expovariate(0.5),
}


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("overload", [1.3, 2.0])
@pytest.mark.parametrize(("rows", "waiting"), [(8, 16), (32, 64), (64, 512)])
def test_who_obeys_gets_in_at_the_second_try_and_rows_are_never_idle(
    service: str, overload: float, rows: int, waiting: int
) -> None:
    crowd = Crowd(
        rows=rows, waiting=waiting, service=SERVICES[service], mean_service=2.0, overload=overload, seconds=60.0
    )
    outcome = crowd.run()
    assert outcome.second_tries > 50
    assert outcome.let_in_second >= 0.9 * outcome.second_tries
    assert outcome.busy_seconds >= 0.95 * 60.0 * rows


@pytest.mark.parametrize("comes_back", [0.0, 0.1, 1.0])
def test_ten_times_too_much_leaves_no_row_idle_however_many_come_back(comes_back: float) -> None:
    def service(draw: random.Random) -> float:
        return draw.uniform(0.2, 3.8)

    crowd = Crowd(
        rows=32,
        waiting=64,
        service=service,
        mean_service=2.0,
        overload=10.0,
        seconds=30.0,
        comes_back=comes_back,
    )
    outcome = crowd.run()
    assert outcome.busy_seconds >= 0.98 * 30.0 * 32
    assert outcome.let_in_second >= 0.9 * outcome.second_tries
