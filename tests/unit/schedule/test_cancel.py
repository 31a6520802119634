from world import World, request

from trivium.types.delta import Delta, FinishReason

PROMPT = tuple(range(100, 110))
CANCELLED = FinishReason.CANCELLED


def test_an_unknown_id_is_no_matter():
    world = World()
    world.scheduler.cancel("nobody")
    world.scheduler.cancel("nobody", 3)
    assert not world.scheduler.has_work


def test_a_queued_request_is_cancelled_without_a_step():
    world = World()
    world.add(request("r", PROMPT))
    world.cancel("r")
    assert world.scheduler.has_work
    assert world.scheduler.plan(0.0) is None
    (delta,) = world.scheduler.take_deltas()
    assert delta == Delta("r", 0, finish_reason=CANCELLED, account=delta.account)
    assert not world.scheduler.has_work


def test_a_running_request_is_cancelled_between_steps():
    world = World(prefix_caching=False)
    world.add(request("r", PROMPT, max_tokens=20))
    world.step()
    world.cancel("r")
    assert world.scheduler.stats().held_blocks == 0
    world.drain()
    world.assert_idle()
    assert (len(world.heard["r", 0].tokens), world.heard["r", 0].reason) == (1, CANCELLED)


def test_a_request_cancelled_while_its_step_runs_keeps_its_blocks_until_the_commit():
    world = World(prefix_caching=False)
    world.add(request("r", PROMPT, max_tokens=20))
    world.add(request("other", PROMPT, max_tokens=20))
    world.step()

    def meanwhile():
        held = world.scheduler.stats().held_blocks
        world.cancel("r")
        assert world.scheduler.stats().held_blocks == held

    world.step(meanwhile=meanwhile)
    assert world.scheduler.stats().held_blocks == 3
    assert (len(world.heard["r", 0].tokens), world.heard["r", 0].reason) == (1, CANCELLED)
    world.drain()
    world.assert_idle()


def test_a_request_cancelled_twice_ends_once():
    world = World()
    world.add(request("r", PROMPT, max_tokens=20))
    world.step(meanwhile=lambda: (world.cancel("r"), world.cancel("r")))
    world.cancel("r")
    world.drain()
    world.assert_idle()
    assert world.scheduler.stats().cancelled == 1


def test_one_sequence_of_several_is_cancelled_alone():
    world = World()
    world.add(request("r", PROMPT, max_tokens=6, n=3))
    world.step()
    world.step()
    world.cancel("r", 1)
    world.cancel("r", 7)
    world.drain()
    world.assert_idle()
    assert [world.heard["r", i].reason for i in range(3)] == [FinishReason.LENGTH, CANCELLED, FinishReason.LENGTH]


def test_a_cancelled_id_may_be_used_again_while_its_last_step_runs():
    world = World()
    world.add(request("r", PROMPT, max_tokens=20))
    world.step()
    step = world.scheduler.plan(0.0)
    world.scheduler.cancel("r")
    world.scheduler.add(request("r", PROMPT, max_tokens=1))
    deltas = world.scheduler.commit(world.device.run(step), 0.0)
    assert deltas == [Delta("r", 0, finish_reason=CANCELLED, account=deltas[0].account)]
    step = world.scheduler.plan(0.0)
    assert [start.request_id for start in step.starts] == ["r"]
    world.scheduler.assert_balanced()


def test_a_cancelled_request_leaves_its_full_blocks_for_others():
    world = World()
    world.add(request("r", PROMPT, max_tokens=20))
    world.step(meanwhile=lambda: world.cancel("r"))
    world.add(request("again", PROMPT, max_tokens=1))
    world.drain()
    assert world.heard["again", 0].num_cached_tokens == 8
