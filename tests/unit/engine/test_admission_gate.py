from __future__ import annotations

import pytest

from trivium.engine.admission import Admission
from trivium.types.errors import OverloadedError
from trivium.types.request import Request, Sampling, Stopping


def request(name: str, num_prompt: int = 10, n: int = 1, priority: int = 0) -> Request:
    return Request(name, tuple(range(num_prompt)), Sampling(seed=0), Stopping(5), arrival=0.0, n=n, priority=priority)


def test_as_many_as_have_rows_and_may_wait_are_let_through() -> None:
    gate = Admission(max_rows=2, max_waiting=1, max_first_token_seconds=None)
    under_way = [request(str(number)) for number in range(3)]
    for asked in under_way:
        gate.check(asked, 0.0)
        gate.sent(asked)
    with pytest.raises(OverloadedError, match="1 sequences wait for a row already, and at most 1 may"):
        gate.check(request("more"), 0.0)
    gate.check(request("urgent", priority=-1), 0.0)
    gate.sequence_ended(under_way[0], 1.0)
    gate.check(request("more"), 1.0)


def test_what_failed_leaves_its_place() -> None:
    gate = Admission(max_rows=1, max_waiting=0, max_first_token_seconds=None)
    asked = request("r", n=3)
    gate.check(asked, 0.0)
    gate.sent(asked)
    gate.sequence_ended(asked, 1.0)
    with pytest.raises(OverloadedError):
        gate.check(request("more"), 1.0)
    gate.gone(asked, num_left=2)
    gate.check(request("more"), 1.0)


def test_a_first_token_that_would_come_too_late_is_refused_with_its_numbers() -> None:
    gate = Admission(max_rows=8, max_waiting=100, max_first_token_seconds=2.0)
    gate.check(request("first", 10_000), 0.0)  # nothing is known yet
    gate.hear(prompt_token_seconds=0.001)
    long = request("long", 1500)
    gate.check(long, 0.0)
    gate.sent(long)
    with pytest.raises(OverloadedError, match=r"expected in 2\.5 s, and more than 2 s are not promised") as refusal:
        gate.check(request("late", 1000), 0.0)
    assert refusal.value.retry_after >= 0.5
    gate.began(long)
    gate.check(request("late", 1000), 0.0)


def test_who_waits_for_a_row_waits_for_ends() -> None:
    gate = Admission(max_rows=2, max_waiting=100, max_first_token_seconds=10.0)
    under_way = [request(str(number)) for number in range(6)]
    for asked in under_way:
        gate.sent(asked)
    for second in range(1, 4):
        gate.sequence_ended(under_way.pop(0), 3.0 * second)
    assert gate.first_token_seconds(request("next")) == pytest.approx(2 * 3.0)
