"""Texts of an encoder: whole, in order, within the step's tokens, and gone when they are told."""

from __future__ import annotations

import random

import pytest

from trivium.schedule.encoder_scheduler import EncoderScheduler
from trivium.schedule.limits import SchedulerLimits
from trivium.types.delta import Delta, FinishReason
from trivium.types.encode import EncodeResult, EncodeStep
from trivium.types.errors import ConfigError, InvalidRequestError, OverloadedError
from trivium.types.request import BACKGROUND_PRIORITY, Request, Sampling, Stopping
from trivium.types.step import RowFailure


def scheduler_of(**limits: int) -> EncoderScheduler:
    values = {"max_rows": 8, "max_batch_tokens": 32, "max_model_len": 16, **limits}
    return EncoderScheduler(SchedulerLimits(**values))


def request(id: str, length: int, arrival: float = 0.0, priority: int = 0) -> Request:
    pooling = Sampling(seed=0, pools=True)
    return Request(id, (1,) * length, pooling, Stopping(max_tokens=1), arrival, priority=priority)


def result_of(step: EncodeStep, *failures: RowFailure) -> EncodeResult:
    return EncodeResult(step.id, tuple(bytes([len(text.tokens)]) for text in step.texts), failures)


def lengths_of(step: EncodeStep | None) -> list[int]:
    return [len(text.tokens) for text in step.texts] if step else []


def test_a_step_takes_texts_in_order_until_its_tokens_are_spent() -> None:
    scheduler = scheduler_of()
    for place, length in enumerate((10, 16, 8, 1)):
        scheduler.add(request(str(place), length, arrival=place))
    step = scheduler.plan(now=4.0)
    assert lengths_of(step) == [10, 16], "nobody overtakes the text that does not fit"
    assert step is not None
    deltas = scheduler.commit(result_of(step), now=4.0)
    assert [(delta.request_id, delta.pooled, delta.finish_reason) for delta in deltas] == [
        ("0", b"\x0a", FinishReason.STOP),
        ("1", b"\x10", FinishReason.STOP),
    ]
    assert lengths_of(scheduler.plan(now=4.0)) == [8, 1]


def test_lower_priority_numbers_and_earlier_arrivals_go_first() -> None:
    scheduler = scheduler_of(max_rows=1)
    for id, arrival, priority in (("late", 2.0, 0), ("early", 1.0, 0), ("urgent", 3.0, -1)):
        scheduler.add(request(id, 4, arrival, priority))
    told = []
    while (step := scheduler.plan(now=9.0)) is not None:
        told += [delta.request_id for delta in scheduler.commit(result_of(step), now=9.0)]
    assert told == ["urgent", "early", "late"]


def test_beside_others_one_background_text_goes_with_each_step() -> None:
    scheduler = scheduler_of()
    for place in range(3):
        scheduler.add(request(f"batch-{place}", 2, arrival=0.0, priority=BACKGROUND_PRIORITY))
    scheduler.add(request("online", 5, arrival=1.0))
    step = scheduler.plan(now=1.0)
    assert lengths_of(step) == [5, 2]
    assert step is not None
    scheduler.commit(result_of(step), now=1.0)
    assert lengths_of(scheduler.plan(now=1.0)) == [2, 2], "alone they fill the step"


def test_background_can_be_paused() -> None:
    scheduler = scheduler_of(max_background_tokens=0)
    scheduler.add(request("batch", 2, priority=BACKGROUND_PRIORITY))
    scheduler.add(request("online", 5))
    assert lengths_of(scheduler.plan(now=0.0)) == [5]


def test_a_cancelled_text_is_told_once_wherever_it_was() -> None:
    scheduler = scheduler_of(max_rows=1)
    scheduler.add(request("running", 3, arrival=0.0))
    scheduler.add(request("waiting", 3, arrival=1.0))
    step = scheduler.plan(now=1.0)
    assert step is not None
    for id in ("running", "waiting", "unknown"):
        scheduler.cancel(id)
    deltas = scheduler.commit(result_of(step), now=1.0)
    assert [(delta.request_id, delta.finish_reason) for delta in deltas] == [
        ("running", FinishReason.CANCELLED),
        ("waiting", FinishReason.CANCELLED),
    ]
    assert not scheduler.has_work
    assert scheduler.stats().cancelled == 2


def test_a_failed_text_leaves_the_others_alone() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("a", 3, arrival=0.0))
    scheduler.add(request("b", 3, arrival=1.0))
    step = scheduler.plan(now=1.0)
    assert step is not None
    sound, failed = scheduler.commit(result_of(step, RowFailure(1, "not a number")), now=1.0)
    assert (sound.finish_reason, sound.error) == (FinishReason.STOP, None)
    assert (failed.finish_reason, failed.error, failed.pooled) == (FinishReason.ERROR, "not a number", b"")


def test_what_can_never_be_encoded_is_refused_with_the_numbers() -> None:
    scheduler = scheduler_of()
    scheduler.add(request("long enough", 16))
    with pytest.raises(InvalidRequestError, match="maximum context length is 16 tokens, but the text has 17") as caught:
        scheduler.add(request("too long", 17))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(InvalidRequestError, match="no tokens"):
        scheduler.add(request("empty", 0))
    with pytest.raises(InvalidRequestError, match="already"):
        scheduler.add(request("long enough", 2))
    with pytest.raises(InvalidRequestError, match="no text"):
        scheduler.add(Request("answer", (1, 2), Sampling(seed=0), Stopping(max_tokens=1), 0.0))
    with pytest.raises(ConfigError, match="a step computes 8 tokens, and a text of 16"):
        scheduler_of(max_batch_tokens=8)


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    scheduler = scheduler_of(max_rows=2, max_waiting=1)
    for place in range(3):
        scheduler.add(request(str(place), 1, arrival=place))
    with pytest.raises(OverloadedError, match="1 texts wait already, and at most 1 may") as caught:
        scheduler.add(request("3", 1, arrival=3))
    assert caught.value.retry_after > 0


def test_every_text_is_told_exactly_once_whatever_comes_and_goes() -> None:
    draw = random.Random(5)
    scheduler = scheduler_of()
    told: list[str] = []
    for number in range(2000):
        scheduler.add(request(str(number), draw.randrange(1, 17), draw.random(), draw.choice([-1, 0, 5, 1_000_000])))
        if draw.random() < 0.2:
            scheduler.cancel(str(draw.randrange(number + 1)))
        if draw.random() < 0.3 and (step := scheduler.plan(now=0.0)) is not None:
            assert step.num_tokens <= 32 and len(step.texts) <= 8
            if draw.random() < 0.3:
                scheduler.cancel(str(draw.randrange(number + 1)))
            told += [delta.request_id for delta in scheduler.commit(result_of(step), now=0.0)]
    while scheduler.has_work:
        step = scheduler.plan(now=0.0)
        deltas = scheduler.commit(result_of(step), now=0.0) if step else scheduler.take_deltas()
        told += [delta.request_id for delta in deltas]
    assert sorted(told, key=int) == [str(number) for number in range(2000)]
    stats = scheduler.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.ended_by_stop + stats.cancelled == 2000


def test_a_text_tells_where_its_time_went_however_it_ends() -> None:
    scheduler = scheduler_of(max_rows=2)
    for place, id in enumerate(("first", "failing", "cancelled in its step", "cancelled before")):
        scheduler.add(request(id, 4, arrival=float(place)), now=10.0)
    deltas: list[Delta] = []
    for now in (11.0, 13.0):
        step = scheduler.plan(now)
        assert step is not None
        if now == 13.0:
            scheduler.cancel("cancelled in its step", now=13.5)
        deltas += scheduler.commit(result_of(step, RowFailure(1, "it broke")), now + 1)
        scheduler.cancel("cancelled before", now=12.5)
    accounts = {delta.request_id: delta.account for delta in deltas}
    assert all(account is not None for account in accounts.values()) and len(accounts) == 4
    for account in accounts.values():
        assert account is not None and sum(account.causes().values()) == account.seconds
    told = {id: (a.handover, a.queued, a.prompt, a.engine_seconds) for id, a in accounts.items() if a is not None}
    assert told == {
        "first": (10.0, 1.0, 1.0, 0.5),
        "failing": (9.0, 1.0, 1.0, 0.5),
        "cancelled in its step": (8.0, 3.0, 0.5, 0.0),
        "cancelled before": (7.0, 2.5, 0.0, 0.0),
    }
