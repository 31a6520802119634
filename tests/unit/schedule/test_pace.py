from __future__ import annotations

import pytest

from trivium.schedule.pace import MOST_SECONDS, SECONDS_WHEN_UNKNOWN, Pace


def test_each_who_is_refused_is_told_of_a_place_of_its_own() -> None:
    pace = Pace()
    pace.begins(9.5)
    for end in (10.0, 10.5, 11.0):
        pace.ended(end, is_awaited=True)
    assert [pace.promise(11.0) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])
    assert pace.promise(12.0) == pytest.approx(1.0)  # two of the three have been
    assert pace.promise(100.0) == pytest.approx(0.5)


def test_nobody_is_sent_away_for_long_because_of_others_who_were() -> None:
    pace = Pace()
    assert {pace.promise(0.0) for _ in range(10_000)} == {SECONDS_WHEN_UNKNOWN}
    pace.begins(0.0)
    pace.ended(0.1, is_awaited=True)
    assert max(pace.promise(0.0) for _ in range(10_000)) == MOST_SECONDS
    slow = Pace()
    slow.begins(0.0)
    slow.ended(300.0, is_awaited=True)
    assert slow.promise(300.0) == 300.0  # but the truth is told


def test_a_rest_is_not_taken_for_slowness() -> None:
    pace = Pace()
    assert pace.promise(0.0) == SECONDS_WHEN_UNKNOWN
    pace.begins(10.0)
    for end in (10.2, 10.4):
        pace.ended(end, is_awaited=True)
    pace.begins(5000.0)
    assert pace.promise(5000.0) == pytest.approx(0.2)
    pace.ended(5000.1, is_awaited=True)
    assert pace.promise(6000.0) == pytest.approx(0.1)


def test_sequences_that_end_together_have_taken_their_time() -> None:
    pace = Pace()
    pace.begins(0.0)
    for _ in range(4):
        pace.ended(2.0, is_awaited=True)
    assert pace.promise(2.0) == pytest.approx(0.5)


def test_ends_that_nobody_waits_for_do_not_tell_the_pace() -> None:
    pace = Pace()
    pace.begins(0.0)
    pace.ended(0.5, is_awaited=True)
    for end in (100.0, 200.0, 300.0):
        pace.ended(end, is_awaited=False)
    assert pace.between_ends == pytest.approx(0.5)
