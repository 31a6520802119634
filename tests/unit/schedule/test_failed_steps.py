"""A step that fails as a whole: who caused it is found and ends with an error, and the others lose nothing but time."""

from __future__ import annotations

import pytest
from random_world import RandomWorld
from world import NATURAL, World, request

from trivium.types.delta import FinishReason


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_one_bad_request_among_many_fails_alone(steps_ahead: int) -> None:
    world = World(steps_ahead=steps_ahead)
    for number in range(6):
        world.add(request(str(number), [number] * (number + 3), max_tokens=8))
    world.step()
    world.add(request("bad", [7] * 5))
    world.drain(breaks=lambda request_ids: "bad" in request_ids)
    assert world.heard["bad", 0].reason is FinishReason.ERROR and world.heard["bad", 0].error == "the fake broke"
    assert all(world.heard[str(number), 0].reason in NATURAL for number in range(6))
    world.assert_idle()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_step_that_fails_once_costs_nobody_his_answer(steps_ahead: int) -> None:
    world = World(steps_ahead=steps_ahead)
    for number in range(4):
        world.add(request(str(number), [number] * 6, max_tokens=8, n=2))
    failed = []
    world.drain(breaks=lambda request_ids: len(request_ids) > 2 and not failed and not failed.append(1))
    assert failed
    assert world.scheduler.stats().failed_steps == 1
    assert all(heard.reason in NATURAL for heard in world.heard.values())
    world.assert_idle()


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_one_that_is_alone_is_run_once_more_before_it_fails(num_before: int, steps_ahead: int) -> None:
    """`num_before`: steps that go well before one does not."""
    for num_failures, reasons in ((1, NATURAL), (2, (FinishReason.ERROR,))):
        world = World(steps_ahead=steps_ahead, max_batch_tokens=4)
        world.add(request("only", [3] * 11, max_tokens=8, prompt_logprobs=0))
        for _ in range(num_before):
            world.step()
        failing = iter([True] * num_failures)
        world.drain(breaks=lambda request_ids, failing=failing: next(failing, False))
        assert world.heard["only", 0].reason in reasons
        assert world.scheduler.stats().failed_steps == num_failures
        world.assert_idle()


def test_suspects_run_one_by_one_and_then_all_together_again() -> None:
    world = World()
    for number in range(4):
        world.add(request(str(number), [number] * 6, max_tokens=20))
    world.step()
    world.step(breaks=lambda request_ids: True)
    assert world.scheduler.stats().suspects == 4
    assert [len(world.step().work) for _ in range(4)] == [1, 1, 1, 1]
    assert world.scheduler.stats().suspects == 0
    assert len(world.step().work) == 4
    world.drain()
    world.assert_idle()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_random_worlds_with_steps_that_fail(steps_ahead: int) -> None:
    num_failed = num_poisoned = num_natural = 0
    for seed in range(60):
        world = RandomWorld(seed, steps_ahead, break_rate=0.02, poison_rate=0.05)
        for _ in range(150):
            world.random_step()
        world.drain(breaks=lambda request_ids, world=world: not world.poisoned.isdisjoint(request_ids))
        world.assert_idle()
        for (request_id, _), heard in world.heard.items():
            assert request_id not in world.poisoned or heard.reason not in NATURAL
            num_poisoned += request_id in world.poisoned
            num_natural += heard.reason in NATURAL
        num_failed += world.scheduler.stats().failed_steps
    assert num_failed > 200 and num_poisoned > 50 and num_natural > 1000


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_what_is_recalled_is_computed_again_without_reuse_and_costs_nobody_his_answer(steps_ahead: int) -> None:
    world = World(steps_ahead=steps_ahead)
    for number in range(4):
        world.add(request(str(number), [5] * 20, max_tokens=8))
    for _ in range(4):
        world.step()
    recalled = world.scheduler.plan(world.now)
    assert recalled is not None
    world.device.break_down(recalled)
    world.in_flight.clear()
    world.scheduler.recall(world.now)
    world.scheduler.assert_balanced()
    assert world.scheduler.stats().cached_blocks == 0 and world.scheduler.stats().suspects == 0
    world.drain()
    assert all(heard.reason in NATURAL for heard in world.heard.values())
    world.assert_idle()
