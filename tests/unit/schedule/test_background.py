"""Work that nobody waits for: all of the machine while it is alone, a small share of each step beside others."""

from __future__ import annotations

import pytest
from world import World, request

from trivium.types.request import BACKGROUND_PRIORITY

PROMPT = tuple(range(100, 110))


def background(name: str, max_tokens: int = 20, prompt: tuple[int, ...] = PROMPT):
    return request(name, prompt, max_tokens=max_tokens, priority=BACKGROUND_PRIORITY)


def counts(world: World) -> dict[str, int]:
    """Runs a step: positions of each request in it."""
    step = world.step()
    assert step is not None
    return {world.device.rows[work.row].start.request_id: work.count for work in step.work}


def test_background_alone_has_every_row_and_token():
    world = World(max_rows=4, max_background_tokens=1)
    for name in "abcd":
        world.add(background(name, prompt=(*PROMPT, ord(name))))
    world.step()
    assert set(counts(world)) == {"a", "b", "c", "d"}


def test_beside_others_background_has_its_share_and_the_first_come_first():
    world = World(max_rows=4, max_background_tokens=2)
    for name in "abc":
        world.add(background(name))
    for _ in range(3):
        world.step()
    world.add(request("online", PROMPT, max_tokens=5))
    seen = [counts(world) for _ in range(5)]
    assert all("online" in step for step in seen)
    assert all(sum(step.values()) - step["online"] <= 2 for step in seen)
    assert all(set(step) == {"online", "a", "b"} for step in seen[1:4])
    world.drain()
    world.assert_idle()


@pytest.mark.parametrize("share", [0, 1, 3])
def test_a_background_prompt_takes_no_more_than_the_share(share: int):
    world = World(max_background_tokens=share)
    world.add(request("online", PROMPT, max_tokens=30))
    world.step()
    world.add(background("long", prompt=tuple(range(40))))
    for _ in range(10):
        assert counts(world).get("long", 0) <= share
    world.drain()
    world.assert_idle()


def test_online_requests_take_as_long_as_without_background():
    def steps_to_end(with_background: bool) -> int:
        world = World(max_rows=4, num_blocks=12, max_background_tokens=1)
        if with_background:
            for name in "abcd":
                world.add(background(name, prompt=tuple(range(ord(name), ord(name) + 8))))
            for _ in range(3):
                world.step()
        start = world.num_steps
        world.add(request("online", PROMPT, max_tokens=10))
        while world.heard[("online", 0)].reason is None:
            world.step()
        taken = world.num_steps - start
        world.drain()
        world.assert_idle()
        return taken

    assert steps_to_end(True) == steps_to_end(False)


def test_with_no_share_background_waits_and_then_goes_on():
    world = World(max_rows=2, max_background_tokens=0)
    world.add(background("a", max_tokens=5))
    world.step()
    world.add(request("online", PROMPT, max_tokens=8))
    while world.heard[("online", 0)].reason is None:
        before = len(world.heard[("a", 0)].tokens)
        world.step()
        assert len(world.heard[("a", 0)].tokens) == before
    world.drain()
    assert len(world.heard[("a", 0)].tokens) == 5
