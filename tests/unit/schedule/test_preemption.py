from world import World, kv_spec, request

from trivium.types.delta import FinishReason

PROMPT = tuple(range(100, 110))


def names(world, step):
    return [world.device.rows[work.row].request.id for work in step.work]


def test_when_blocks_run_out_the_last_in_rank_gives_its_up_and_resumes_exactly():
    world = World(num_blocks=8)
    world.add(request("first", range(12), max_tokens=16, arrival=0.0))
    world.add(request("second", range(50, 62), max_tokens=16, arrival=1.0))
    world.drain()
    assert world.scheduler.stats().preemptions > 0
    assert [world.heard[name, 0].reason for name in ("first", "second")] == [FinishReason.LENGTH] * 2
    world.assert_idle()


def test_the_first_in_rank_is_in_every_step_until_it_ends():
    world = World(num_blocks=8)
    world.add(request("first", range(12), max_tokens=16, arrival=0.0))
    for i in range(4):
        world.add(request(f"r{i}", range(50 * i + 50, 50 * i + 60), max_tokens=16, arrival=1.0))
    while world.heard["first", 0].reason is None:
        step = world.step()
        assert "first" in names(world, step)
    world.drain()
    world.assert_idle()


def test_a_long_prompt_that_ranks_first_takes_blocks_from_rows_already_in_the_plan():
    world = World(num_blocks=8, max_batch_tokens=8, prefix_caching=False)
    world.add(request("late", range(50, 56), max_tokens=16, arrival=2.0))
    world.step()
    world.add(request("early", range(24), max_tokens=4, arrival=1.0))
    for _ in range(3):
        assert names(world, world.step()) == ["late", "early"]
    assert names(world, world.step()) == ["early"]
    assert world.scheduler.stats().preemptions == 1
    assert world.heard["late", 0].reason is None
    world.drain()
    world.assert_idle()


def test_a_preempted_sequence_resumes_from_its_cached_blocks_with_its_tokens_so_far():
    world = World()
    world.add(request("r", PROMPT, max_tokens=10))
    for _ in range(4):
        world.step()
    world.scheduler.preempt("r")
    assert world.scheduler.stats().held_blocks == 0
    step = world.step()
    [start], [work] = step.starts, step.work
    assert start.tokens == PROMPT + tuple(world.heard["r", 0].tokens[:4])
    assert start.num_prompt_tokens == len(PROMPT)
    assert (work.start, work.count, work.samples) == (12, 2, True)
    assert step.ends == (0,)
    world.drain()
    world.assert_idle()
    assert world.heard["r", 0].num_cached_tokens == 0  # its own blocks do not count as found


def test_a_preemption_asked_for_while_the_step_runs_happens_at_its_commit():
    world = World()
    world.add(request("r", PROMPT, max_tokens=10))
    world.step()
    world.step(meanwhile=lambda: world.scheduler.preempt("r"))
    assert len(world.heard["r", 0].tokens) == 2
    assert world.scheduler.stats().held_blocks == 0
    world.drain()
    world.assert_idle()


def test_preempting_what_does_not_run_is_no_matter():
    world = World(max_rows=1)
    world.scheduler.preempt("nobody")
    world.add(request("running", PROMPT))
    world.add(request("waiting", PROMPT))
    world.step()
    world.scheduler.preempt("waiting")
    world.step(meanwhile=lambda: (world.scheduler.preempt("running"), world.cancel("running")))
    world.drain()
    world.assert_idle()
    assert world.scheduler.stats().preemptions == 0


def test_a_preempted_sequence_goes_before_all_of_its_priority_that_have_not_begun():
    world = World(max_rows=1)
    world.add(request("begun", PROMPT, max_tokens=5, arrival=5.0))
    world.step()
    world.add(request("earlier", PROMPT, arrival=1.0))
    world.add(request("urgent", PROMPT, arrival=9.0, priority=-1))
    world.scheduler.preempt("begun")
    started = [start.request_id for step in world.drain() for start in step.starts]
    assert started == ["urgent", "begun", "earlier"]


def test_a_preemption_in_mid_prompt_repeats_no_prompt_logprobs():
    world = World(max_chunk_tokens=3)
    world.add(request("r", range(50, 63), max_tokens=3, prompt_logprobs=0))
    for _ in range(20):
        world.step()
        world.scheduler.preempt("r")
        if not world.scheduler.has_work:
            break
    world.drain()  # each delta was checked: each prompt token's once, in order
    world.assert_idle()
    assert [entry.token for entry in world.heard["r", 0].prompt_logprobs] == list(range(51, 63))


def test_a_request_of_higher_priority_displaces_a_running_one_for_its_row():
    world = World(max_rows=1)
    world.add(request("low", PROMPT, max_tokens=10, priority=1))
    world.step()
    world.add(request("high", PROMPT, max_tokens=2, priority=0, arrival=5.0))
    assert names(world, world.step()) == ["high"]
    world.drain()
    world.assert_idle()


def test_a_request_of_higher_priority_displaces_running_ones_for_their_blocks():
    world = World(num_blocks=8, prefix_caching=False)
    for i in range(2):
        world.add(request(f"low{i}", range(12), max_tokens=4, priority=1, arrival=float(i)))
    world.step()
    world.add(request("high", range(16), max_tokens=2, priority=0, arrival=5.0))
    assert sorted(names(world, world.step())) == ["high", "low0"]
    world.drain()
    world.assert_idle()


def test_a_request_displaces_none_of_its_own_priority():
    world = World(max_rows=1)
    world.add(request("late", PROMPT, max_tokens=10, arrival=5.0))
    world.step()
    world.add(request("early", PROMPT, max_tokens=2, arrival=0.0))
    world.drain()
    assert world.scheduler.stats().preemptions == 0


def test_a_request_of_higher_priority_does_not_wait_behind_a_long_prompt():
    world = World(max_batch_tokens=8, max_model_len=256)
    world.add(request("long", range(120), max_tokens=1, priority=1))
    world.step()
    world.add(request("high", PROMPT[:4], max_tokens=1, priority=0, arrival=5.0))
    step = world.step()
    assert [(name, work.count) for name, work in zip(names(world, step), step.work, strict=True)] == [
        ("high", 4),
        ("long", 4),
    ]
    world.drain()
    assert world.scheduler.stats().preemptions == 0


def test_the_smallest_pools_make_everyone_end_whatever_the_groups():
    for windows in [(None,), (5,), (None, 6), (3, None, 9), (1, 2)]:
        for num_blocks in range(3 * len(windows), 8 * len(windows), 2):
            world = World(kv_spec(*windows, block_size=3), num_blocks, max_rows=3, max_chunk_tokens=5)
            longest = world.scheduler._longest
            for i in range(4):
                length = max(1, min(longest, 30) - 4 - i)
                world.add(request(f"r{i}", range(9 * i, 9 * i + length), max_tokens=4, n=1 + i % 2))
            world.drain()
            world.assert_idle()


def test_nobody_is_displaced_only_for_a_share_of_one_step():
    world = World(max_batch_tokens=8, max_rows=4)
    world.add(request("low", PROMPT[:4], max_tokens=30, priority=1))
    world.step()
    world.add(request("long", range(60), max_tokens=1, arrival=1.0))
    world.add(request("next", PROMPT[:4], max_tokens=1, arrival=2.0))
    for _ in range(5):
        assert names(world, world.step()) == ["low", "long"]
    world.drain()
    assert world.scheduler.stats().preemptions == 0
