"""The recount of rows goes red where a book is wrong: each is broken by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from world import World, request

from trivium.cache.pool import LedgerError
from trivium.schedule.scheduler import Scheduler


def lose_a_free_row(scheduler: Scheduler) -> None:
    scheduler._free_rows.pop()


def forget_who_runs(scheduler: Scheduler) -> None:
    scheduler._running.clear()


def end_without_giving_back(scheduler: Scheduler) -> None:
    (sequence,) = scheduler._running
    sequence.state = type(sequence.state).ENDED


def plan_what_nobody_computes(scheduler: Scheduler) -> None:
    scheduler._running[0].num_planned += 1


def await_what_nobody_draws(scheduler: Scheduler) -> None:
    scheduler._running[0].num_awaited += 1


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lose_a_free_row, "the free rows are not those"),
        (forget_who_runs, "the running sequences are not those that have rows"),
        (end_without_giving_back, "an ended sequence has a row"),
        (plan_what_nobody_computes, "the positions planned for a sequence"),
        (await_what_nobody_draws, "awaits tokens that no step in flight draws"),
    ],
)
def test_a_book_of_rows_that_is_wrong_is_noticed(breaks: Callable[[Scheduler], None], said: str) -> None:
    world = World()
    world.add(request("r", tuple(range(10)), max_tokens=8))
    world.step()
    world.scheduler.assert_balanced()
    breaks(world.scheduler)
    with pytest.raises(LedgerError, match=said):
        world.scheduler.assert_balanced()
