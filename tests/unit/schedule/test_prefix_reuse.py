from msgspec.structs import replace
from world import World, kv_spec, request

from trivium.types.step import RowFailure

PROMPT = tuple(range(100, 113))


def first_start(steps):
    return steps[0].work[0].start


def test_a_shared_prefix_is_not_computed_again():
    world = World()
    world.add(request("a", PROMPT, max_tokens=1))
    world.drain()
    world.add(request("b", (*PROMPT[:9], 1, 2, 3), max_tokens=1))
    steps = world.drain()
    assert first_start(steps) == 8
    assert world.heard["b", 0].num_cached_tokens == 8
    assert world.scheduler.stats().cached_tokens == 8


def test_what_was_generated_is_found_by_the_next_turn():
    world = World()
    world.add(request("a", PROMPT, max_tokens=8))
    world.drain()
    world.add(request("b", (*PROMPT, *world.heard["a", 0].tokens, 1), max_tokens=1))
    assert first_start(world.drain()) == 20


def test_a_prefix_is_found_while_its_owner_still_runs():
    world = World()
    world.add(request("a", PROMPT, max_tokens=20))
    world.step()
    world.add(request("b", PROMPT, max_tokens=1))
    step = world.step()
    assert [work.start for work in step.work] == [13, 12]
    world.drain()
    world.assert_idle()


def test_another_salt_finds_nothing():
    world = World()
    world.add(request("a", PROMPT, max_tokens=1, salt="one"))
    world.drain()
    world.add(request("b", PROMPT, max_tokens=1, salt="two"))
    assert first_start(world.drain()) == 0
    assert world.heard["b", 0].num_cached_tokens == 0


def test_a_request_for_prompt_logprobs_computes_the_whole_prompt():
    world = World()
    world.add(request("a", PROMPT, max_tokens=1))
    world.drain()
    world.add(request("b", PROMPT, max_tokens=1, prompt_logprobs=0))
    assert first_start(world.drain()) == 0


def test_without_prefix_caching_everything_is_computed():
    world = World(prefix_caching=False)
    for name in "ab":
        world.add(request(name, PROMPT, max_tokens=1))
        assert first_start(world.drain()) == 0
    assert world.scheduler.stats().cached_blocks == 0


def test_sliding_groups_hold_only_their_windows_while_the_full_group_holds_all():
    world = World(kv_spec(None, 8), num_blocks=64, prefix_caching=False)
    world.add(request("r", range(60), max_tokens=20))
    for _ in range(10):
        world.step()
    assert (
        world.scheduler.stats().held_blocks == 18 + 3
    )  # of 69 tokens; the window sees the last 7, which lie in 3 blocks


def test_equal_prompts_computed_at_once_end_up_sharing_their_blocks():
    world = World()
    for name in "abc":
        world.add(request(name, PROMPT, max_tokens=3))
    step = world.step()
    assert len(step.work) == 3
    assert world.scheduler.stats().held_blocks == 3 + 3  # three full blocks shared, a last one each
    world.drain()
    world.assert_idle()


def shared_prompts(names, shared=PROMPT):
    return {name: (*shared, *(i + 1 for _ in range(3))) for i, name in enumerate(names)}


def test_prompts_that_come_together_compute_their_common_part_once():
    world = World(max_batch_tokens=256)
    for name, prompt in shared_prompts("abcd").items():
        world.add(request(name, prompt, max_tokens=3))
    step = world.step()
    assert [(work.start, work.count) for work in step.work] == [(0, 16), (12, 4), (12, 4), (12, 4)]
    assert [world.scheduler.stats().cached_tokens, world.scheduler.stats().prompt_tokens] == [3 * 12, 4 * 16]
    world.drain()
    world.assert_idle()


def test_a_prompt_shares_what_a_running_one_computes_in_the_same_step():
    world = World(max_batch_tokens=24, max_chunk_tokens=12)
    world.add(request("long", range(40), max_tokens=1))
    world.step()
    world.add(request("late", (*range(24), 7), max_tokens=1))
    step = world.step()
    assert [(work.start, work.count) for work in step.work] == [(12, 12), (24, 1)]
    world.drain()
    world.assert_idle()


def test_the_one_that_computes_for_others_may_be_cancelled_while_it_does():
    world = World()
    for name, prompt in shared_prompts("abc").items():
        world.add(request(name, prompt, max_tokens=3))
    world.step(meanwhile=lambda: world.cancel("a"))
    world.drain()
    world.assert_idle()
    assert world.scheduler.stats().preemptions == 0


def test_what_was_read_of_a_row_that_failed_is_computed_again_and_nobody_hears_of_it():
    world = World()
    for name, prompt in shared_prompts("abc").items():
        world.add(request(name, prompt, max_tokens=3))
    failing = world.step(fails=lambda work: work.start == 0)
    assert [world.heard[name, 0].error for name in "abc"] == ["the fake failed", None, None]
    assert [world.heard[name, 0].tokens for name in "bc"] == [[], []]
    again = world.step()
    assert [work.start for work in again.work] == [work.start for work in failing.work][:2]
    world.drain()
    assert all(world.heard[name, 0].tokens for name in "bc")
    world.assert_idle()


def test_a_failure_by_the_requests_own_fault_costs_its_neighbours_nothing():
    world = World()
    for name, prompt in shared_prompts("ab").items():
        world.add(request(name, prompt, max_tokens=3))
    step = world.scheduler.plan(1.0)
    result = world.device.run(step)
    failure = RowFailure(step.work[0].row, "bans every token", is_requests_fault=True)
    world.hear(world.scheduler.commit(replace(result, sampled=result.sampled[1:], failures=(failure,)), 1.0))
    assert len(world.heard["b", 0].tokens) == 1
    world.drain()
    world.assert_idle()
