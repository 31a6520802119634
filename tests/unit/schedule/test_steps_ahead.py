"""Steps planned while others are in flight. The random worlds run so too; here each promise is told by itself."""

import pytest
from fake_device import next_token
from world import World, expected_tokens, request

from trivium.types.delta import FinishReason
from trivium.types.step import SampledRow, StepResult

PROMPT = tuple(range(100, 110))


def work_of(step):
    return [(work.start, work.count, work.samples) for work in step.work]


def test_the_position_of_a_token_still_being_drawn_is_planned():
    world = World()
    world.add(request("r", PROMPT, max_tokens=4))
    steps = [world.scheduler.plan(0.0) for _ in range(2)]
    assert [work_of(step) for step in steps] == [[(0, 10, True)], [(10, 1, True)]]
    assert world.scheduler.stats().planned_ahead == 1


def test_results_are_committed_in_the_order_of_their_steps():
    world = World()
    world.add(request("r", PROMPT))
    first, second = (world.device.run(world.scheduler.plan(0.0)) for _ in range(2))
    with pytest.raises(RuntimeError, match="step 1 has a result, but the next to be committed is 0"):
        world.scheduler.commit(second, 0.0)
    world.hear(world.scheduler.commit(first, 0.0))
    world.hear(world.scheduler.commit(second, 0.0))
    with pytest.raises(RuntimeError, match="step 1 has a result"):
        world.scheduler.commit(second, 0.0)


def test_a_third_step_is_not_planned_before_the_first_is_committed():
    world = World()
    world.add(request("r", PROMPT))
    for _ in range(2):
        world.scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match=r"steps \[0, 1\] are in flight"):
        world.scheduler.plan(0.0)


def test_nothing_is_planned_after_the_last_token_that_a_request_may_have():
    world = World()
    world.add(request("r", PROMPT, max_tokens=2))
    first, second = (world.scheduler.plan(0.0) for _ in range(2))
    assert work_of(second) == [(10, 1, True)]
    world.hear(world.scheduler.commit(world.device.run(first), 0.0))
    assert world.scheduler.plan(0.0) is None


def test_what_is_computed_after_a_stop_token_is_never_heard_and_its_blocks_come_back_with_it():
    world = World(steps_ahead=1, prefix_caching=False)
    stop = next_token(request("r", PROMPT), 0, len(PROMPT) + 1)
    world.add(request("r", PROMPT, max_tokens=20, stop=(stop,)))
    while world.heard["r", 0].reason is None:
        world.step()
    assert world.heard["r", 0].tokens == expected_tokens(world.requests["r"], 0)[0]
    assert world.scheduler.stats().held_blocks == 3  # the step in flight still reads them
    world.step()
    assert world.scheduler.stats().held_blocks == 0
    assert world.scheduler.stats().discarded == 1
    world.drain()
    world.assert_idle()


def test_a_request_cancelled_in_flight_keeps_its_blocks_until_its_last_step_is_committed():
    world = World(steps_ahead=1, prefix_caching=False)
    world.add(request("r", PROMPT, max_tokens=20))
    world.step()
    world.step(meanwhile=lambda: world.cancel("r"))
    assert world.scheduler.stats().held_blocks == 3
    world.step()
    assert world.scheduler.stats().held_blocks == 0
    world.drain()
    world.assert_idle()
    assert world.heard["r", 0].tokens == []


def test_a_row_that_fails_in_flight_leaves_nothing_for_others_to_find():
    world = World(steps_ahead=1)
    world.add(request("bad", PROMPT, max_tokens=20))
    for _ in range(4):
        world.step()
    world.step(fails=lambda work: True)
    world.drain()
    assert world.heard["bad", 0].reason is FinishReason.ERROR
    world.add(request("again", (*PROMPT, *world.heard["bad", 0].tokens, 1, 2, 3), max_tokens=1))
    world.drain()
    world.assert_idle()


def test_a_request_that_needs_the_host_takes_part_in_every_other_step_and_is_counted():
    world = World(steps_ahead=1, needs_host=lambda request: "grammar" if request.id == "slow" else None)
    world.add(request("slow", PROMPT, max_tokens=3))
    world.add(request("fast", PROMPT, max_tokens=5))
    steps = world.drain()
    assert [len(step.work) for step in steps] == [2, 1, 2, 1, 2, 0]
    assert world.scheduler.stats().held_back == {"grammar": 2}
    world.assert_idle()


def test_alone_such_a_request_runs_step_after_step():
    world = World(steps_ahead=1, needs_host=lambda request: "grammar")
    world.add(request("slow", PROMPT, max_tokens=3))
    assert [len(step.work) for step in world.drain()] == [1, 1, 1, 0]
    world.assert_idle()


def test_it_may_be_given_several_tokens_at_once():
    world = World(steps_ahead=1, needs_host=lambda request: "drafts")
    world.add(request("r", PROMPT, max_tokens=9))
    while world.scheduler.has_work:
        world.step(num_tokens=lambda work: 3)
    world.assert_idle()


def test_several_tokens_where_a_step_in_flight_counts_on_one_are_a_failure_of_that_row():
    world = World()
    world.add(request("r", PROMPT, max_tokens=9))
    first = world.scheduler.plan(0.0)
    world.scheduler.plan(0.0)
    [delta] = world.scheduler.commit(StepResult(first.id, (SampledRow(0, (1, 2)),)), 0.0)
    assert delta.error == "the device gave 2 tokens where the next step counts on one"


def test_a_preemption_asked_for_in_flight_lets_the_steps_run_out_and_then_happens():
    world = World(steps_ahead=1)
    world.add(request("r", PROMPT, max_tokens=10))
    world.step()
    world.step()
    world.scheduler.preempt("r")
    assert world.step() is None
    assert world.scheduler.stats().preemptions == 1
    assert len(world.heard["r", 0].tokens) == 2
    world.drain()
    world.assert_idle()


def test_the_first_in_rank_waits_one_step_at_most_for_the_blocks_of_others():
    world = World(num_blocks=8, steps_ahead=1)
    world.add(request("first", range(12), max_tokens=16, arrival=0.0))
    for i in range(4):
        world.add(request(f"r{i}", range(50 * i + 50, 50 * i + 60), max_tokens=16, arrival=1.0))
    times_absent = 0
    while world.heard["first", 0].reason is None and len(world.heard["first", 0].tokens) < 14:
        step = world.step()
        present = step is None or "first" in {world.device.rows[work.row].request.id for work in step.work}
        times_absent = 0 if present else times_absent + 1
        assert times_absent < 2
    assert world.scheduler.stats().preemptions > 0
    world.drain()
    world.assert_idle()


def test_a_request_of_higher_priority_displaces_rows_of_steps_in_flight_when_these_are_done():
    world = World(max_rows=1, steps_ahead=1)
    world.add(request("low", PROMPT, max_tokens=10, priority=1))
    world.step()
    world.step()
    world.add(request("high", PROMPT, max_tokens=2, priority=0, arrival=5.0))
    started = [start.request_id for step in world.drain() for start in step.starts]
    assert started == ["high", "low"]
    world.assert_idle()


def test_an_ended_row_is_told_with_the_next_work_and_not_by_a_step_of_its_own():
    world = World(steps_ahead=1)
    world.add(request("short", PROMPT, max_tokens=1))
    world.add(request("long", PROMPT, max_tokens=6))
    steps = world.drain()
    assert [(step.ends, len(step.work)) for step in steps] == [
        ((), 2),
        ((), 1),
        ((1,), 1),
        ((), 1),
        ((), 1),
        ((), 1),
        ((0,), 0),
    ]


def test_no_step_is_made_only_to_end_rows_while_another_is_in_flight():
    world = World(steps_ahead=1, needs_host=lambda request: "grammar")
    world.add(request("short", PROMPT, max_tokens=1))
    world.step()
    world.add(request("late", PROMPT, max_tokens=2))
    world.step()  # late is in flight, and short has ended at the commit
    assert world.step() is None
    assert world.step().ends == (0,)
    world.drain()
    world.assert_idle()


def test_who_shares_a_block_that_a_later_step_fails_to_fill_begins_again():
    """`first` computed the block itself, and went over to that of `second`, which was in the tree before."""
    world = World(steps_ahead=1, needs_host=lambda request: "grammar")
    first = request("first", (1, 2, 3), max_tokens=6)
    world.add(first)
    world.step()
    world.step()
    world.step()  # its fourth token fills a block
    world.add(request("second", (*first.prompt, *expected_tokens(first, 0)[0][:1], 7, 8), max_tokens=2))
    world.step(fails=lambda work: world.device.rows[work.row].request.id == "second")
    world.scheduler.preempt("nobody")  # whatever makes the steps run out
    world.step()
    assert world.heard["second", 0].reason is FinishReason.ERROR
    world.drain()
    world.assert_idle()
    assert world.heard["first", 0].reason is FinishReason.LENGTH
