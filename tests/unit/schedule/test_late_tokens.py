"""Rows whose token comes with a later step: they wait, the others go on, and nothing is told twice or lost."""

from __future__ import annotations

import pytest
from world import World, request

from trivium.types.delta import FinishReason
from trivium.types.request import Request


def why_host(asked: Request) -> str | None:
    return "a test" if asked.id.startswith("bound") else None


@pytest.fixture(params=[0, 1])
def world(request: pytest.FixtureRequest) -> World:
    return World(steps_ahead=request.param, needs_host=why_host)


def bound_rows(world: World) -> set[int]:
    return {row for row, held in world.device.rows.items() if held.request.id.startswith("bound")}


def late_while(world: World, steps: int) -> None:
    """The bound rows draw nothing for so many steps."""
    for _ in range(steps):
        world.step(is_late=lambda row: row in bound_rows(world))


def test_others_go_on_while_a_token_is_late(world: World) -> None:
    world.add(request("bound", range(5), 4))
    world.add(request("free", range(3), 12))
    late_while(world, 8)
    assert world.heard["bound", 0].tokens == []
    assert len(world.heard["free", 0].tokens) >= 5
    world.drain()
    world.assert_idle()


def test_a_late_row_is_computed_once(world: World) -> None:
    world.add(request("bound", range(5), 1))
    world.add(request("free", range(3), 12))
    work = [
        item
        for _ in range(6)
        for step in [world.step(is_late=lambda row: row in bound_rows(world))]
        for item in (step.work if step else ())
    ]
    (row,) = bound_rows(world)
    assert [(item.start, item.count) for item in work if item.row == row] == [(0, 5)]
    world.drain()
    world.assert_idle()


def test_late_tokens_come_when_nothing_else_is_left_to_do(world: World) -> None:
    world.add(request("bound", range(5), 3))
    late_while(world, 6)
    steps = world.drain()
    assert all(not step.work for step in steps[:1])
    assert world.heard["bound", 0].reason in (FinishReason.LENGTH, FinishReason.STOP)
    world.assert_idle()


def test_a_cancelled_late_row_is_free_at_once_and_its_token_is_nobodys(world: World) -> None:
    world.add(request("bound", range(5), 8))
    world.add(request("free", range(3), 20))
    late_while(world, 4)
    world.cancel("bound")
    world.add(request("bound-next", range(6), 3))
    world.drain()
    world.assert_idle()


def test_a_preempted_late_row_begins_again(world: World) -> None:
    world.add(request("bound", range(9), 4))
    world.add(request("free", range(3), 20))
    late_while(world, 4)
    world.scheduler.preempt("bound")
    late_while(world, 4)
    world.drain()
    assert len(world.heard["bound", 0].tokens) > 0
    world.assert_idle()
