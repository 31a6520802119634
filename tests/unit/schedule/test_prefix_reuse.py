from world import World, kv_spec, request

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
