from __future__ import annotations

import pytest

from trivium.engine.admission import LONG_PROMPT_TOKENS, Admission
from trivium.types.errors import OverloadedError
from trivium.types.overload import Grade
from trivium.types.request import BACKGROUND_PRIORITY, Request, Sampling, Stopping


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
    assert gate.first_token_seconds(0, 10) == pytest.approx(2 * 3.0)


def filled(num_waiting: int, *, max_waiting: int = 8) -> tuple[Admission, list[Request]]:
    """A gate before an engine of two rows, whose sequences end every second, and in which so many wait."""
    gate = Admission(max_rows=2, max_waiting=max_waiting, max_first_token_seconds=None)
    under_way = [request(f"under way {number}") for number in range(2 + num_waiting + 4)]
    for asked in under_way:
        gate.sent(asked)
    for second in range(1, 5):
        gate.sequence_ended(under_way.pop(0), float(second))
    return gate, under_way


def let_in(gate: Admission, asked: Request) -> None:
    gate.check(asked, 4.0, gate.knock(asked.priority, None, 4.0))


def reason(gate: Admission) -> dict[str, int]:
    return {reason: count for reason, count in gate.stats(4.0).put_off.items() if count}


def test_who_knocks_holds_its_place_until_it_is_sent_or_gone() -> None:
    gate = Admission(max_rows=1, max_waiting=0, max_first_token_seconds=None)
    place = gate.knock(0, None, 0.0)
    with pytest.raises(OverloadedError):
        gate.knock(0, None, 0.0)
    assert place.leave() and not place.leave()
    place = gate.knock(0, None, 0.0)
    asked = request("r")
    gate.check(asked, 0.0, place)
    gate.sent(asked)
    assert not place.leave()
    with pytest.raises(OverloadedError):
        gate.knock(0, None, 0.0)
    gate.gone(asked, 1)
    gate.knock(0, None, 0.0)


def test_a_first_token_that_would_be_late_after_any_prompt_is_refused_at_the_knock() -> None:
    gate = Admission(max_rows=8, max_waiting=100, max_first_token_seconds=2.0)
    gate.hear(prompt_token_seconds=0.001)
    gate.sent(request("long", 2500))
    with pytest.raises(OverloadedError, match=r"expected in 2\.5 s"):
        gate.knock(0, None, 0.0)


def test_while_somebody_waits_for_a_row_batches_are_put_off_and_nobody_else_is() -> None:
    gate, _ = filled(0)
    assert gate.grade(4.0) is Grade.OPEN
    let_in(gate, request("batch", priority=BACKGROUND_PRIORITY))
    gate, _ = filled(1)
    assert gate.grade(4.0) is Grade.BUSY
    with pytest.raises(OverloadedError, match="1 sequences wait for a row, and batches go after them") as refusal:
        gate.knock(BACKGROUND_PRIORITY, None, 4.0)
    assert refusal.value.retry_after == pytest.approx(2.0)  # two rows, an end every second
    assert reason(gate) == {"batch": 1}
    let_in(gate, request("several", n=4))
    let_in(gate, request("long", LONG_PROMPT_TOKENS + 1))


def test_where_half_the_places_are_taken_several_answers_and_long_prompts_are_put_off() -> None:
    gate, _ = filled(4)
    assert gate.grade(4.0) is Grade.CROWDED
    let_in(gate, request("one"))
    with pytest.raises(OverloadedError, match="4 of 8 places in the queue are taken, and 4 answers at once must wait"):
        let_in(gate, request("several", n=4))
    with pytest.raises(OverloadedError, match="a prompt of 2049 tokens, more than 2048, must wait"):
        let_in(gate, request("long", LONG_PROMPT_TOKENS + 1))
    assert reason(gate) == {"several_answers": 1, "long_prompt": 1}


def test_a_program_with_the_engine_to_itself_may_fill_the_queue_with_anything() -> None:
    gate, _ = filled(7)
    gate.check(request("several", n=4), 4.0)
    gate.check(request("long", LONG_PROMPT_TOKENS + 1), 4.0)
    gate.check(request("background", priority=BACKGROUND_PRIORITY), 4.0)
    assert reason(gate) == {}


def test_what_was_put_off_for_its_size_gets_in_when_it_was_told_to_come() -> None:
    gate, _ = filled(4)
    several = request("several", n=4)
    with pytest.raises(OverloadedError) as refusal:
        gate.check(several, 4.0, gate.knock(0, 77, 4.0))
    later = 4.0 + refusal.value.retry_after
    assert gate.grade(later) is Grade.CROWDED
    gate.check(several, later, gate.knock(0, 77, later))


def test_the_last_places_are_for_those_who_were_told_to_come_now() -> None:
    gate, under_way = filled(8)
    assert gate.grade(4.0) is Grade.SHUT
    with pytest.raises(OverloadedError, match="8 sequences wait for a row already, and at most 8 may") as refusal:
        gate.knock(0, 77, 4.0)
    later = 4.0 + refusal.value.retry_after
    gate.sequence_ended(under_way.pop(0), later)
    assert gate.grade(later) is Grade.FULL
    with pytest.raises(OverloadedError, match="7 sequences wait for a row, and the 1 places left are kept"):
        gate.knock(0, 88, later)
    assert gate.knock(0, 77, later).is_invited
    stats = gate.stats(later)
    assert (stats.kept, stats.appointments, reason(gate)) == (1, 1, {"queue": 1, "newcomer": 1})


def test_who_is_told_to_come_back_later_for_its_prompt_is_told_when_that_can_be() -> None:
    gate = Admission(max_rows=8, max_waiting=100, max_first_token_seconds=2.0)
    gate.hear(prompt_token_seconds=0.001)
    gate.sent(request("long", 9000))
    with pytest.raises(OverloadedError) as refusal:
        gate.knock(0, 77, 0.0)
    assert refusal.value.retry_after == pytest.approx(7.0)
