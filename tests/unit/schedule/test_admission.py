import pytest
from world import World, kv_spec, request

from trivium.types.errors import ConfigError, InvalidRequestError, NeverFitsError, OverloadedError

PROMPT = tuple(range(100, 110))


def test_what_is_longer_than_the_model_allows_is_refused_with_the_three_numbers():
    world = World(max_model_len=20)
    with pytest.raises(NeverFitsError) as refusal:
        world.add(request("r", PROMPT, max_tokens=11))
    assert (refusal.value.num_prompt_tokens, refusal.value.num_new_tokens, refusal.value.limit) == (10, 11, 20)
    world.add(request("r", PROMPT, max_tokens=10))


def test_what_the_blocks_can_never_hold_is_refused_and_what_just_fits_runs_to_its_end():
    world = World(kv_spec(None, None), num_blocks=6)  # 3 blocks of 4 tokens for each group; the last token needs none
    with pytest.raises(NeverFitsError) as refusal:
        world.add(request("r", PROMPT, max_tokens=4))
    assert refusal.value.limit == 13
    world.add(request("r", PROMPT, max_tokens=3))
    world.drain()
    world.assert_idle()


def test_a_sliding_model_takes_sequences_longer_than_its_blocks():
    world = World(kv_spec(8), num_blocks=3, max_model_len=200)
    world.add(request("r", range(150), max_tokens=50))
    world.drain()
    world.assert_idle()


@pytest.mark.parametrize(
    ("wrong", "param"),
    [({"prompt": ()}, "prompt"), ({"max_tokens": 0}, "max_tokens"), ({"n": 0}, "n")],
)
def test_a_request_that_asks_for_nothing_is_refused(wrong, param):
    with pytest.raises(InvalidRequestError) as refusal:
        World().add(request("r", **{"prompt": PROMPT, **wrong}))
    assert refusal.value.param == param


def test_an_id_that_is_being_served_is_refused_and_may_come_again_after_its_end():
    world = World()
    world.add(request("r", PROMPT))
    with pytest.raises(InvalidRequestError, match="already"):
        world.scheduler.add(request("r", PROMPT))
    world.drain()
    world.add(request("r", PROMPT))
    world.drain()


def test_a_full_queue_refuses_with_a_time_to_come_back():
    world = World(max_rows=1, max_waiting=1)
    for name in "ab":
        world.add(request(name, PROMPT, max_tokens=3))
    with pytest.raises(OverloadedError) as refusal:
        world.add(request("c", PROMPT))
    assert refusal.value.retry_after == 1.0  # nothing is known yet
    world.drain()
    for name in "cd":
        world.add(request(name, PROMPT))
    with pytest.raises(OverloadedError) as refusal:
        world.add(request("e", PROMPT))
    assert refusal.value.retry_after == 3.0  # a and b ended after 3 and 6 steps of one second


def test_a_queue_full_of_lower_priority_refuses_nobody_before_it():
    world = World(max_rows=1, max_waiting=1)
    for name in "ab":
        world.add(request(name, PROMPT, priority=5))
    with pytest.raises(OverloadedError):
        world.add(request("c", PROMPT, priority=5))
    for name in "de":  # one takes the row of the lower priority, one waits
        world.add(request(name, PROMPT))
    with pytest.raises(OverloadedError, match="1 sequences wait"):
        world.add(request("f", PROMPT))
    world.drain()
    world.assert_idle()


def test_a_queue_of_none_still_serves_as_many_as_there_are_rows():
    world = World(max_rows=2, max_waiting=0)
    for name in "ab":
        world.add(request(name, PROMPT))
    with pytest.raises(OverloadedError, match="0 sequences wait for a row already, and at most 0 may"):
        world.add(request("c", PROMPT))
    world.drain()
    world.add(request("c", PROMPT))
    world.drain()
    world.assert_idle()


def test_limits_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="max_rows must be at least 1, not 0"):
        World(max_rows=0)


def test_waiting_requests_start_by_priority_then_arrival_then_id():
    world = World(max_rows=1)
    world.add(request("late", PROMPT, arrival=2.0))
    world.add(request("b", PROMPT, arrival=1.0))
    world.add(request("a", PROMPT, arrival=1.0))
    world.add(request("urgent", PROMPT, arrival=3.0, priority=-1))
    started = [start.request_id for step in world.drain() for start in step.starts]
    assert started == ["urgent", "a", "b", "late"]


def test_nobody_overtakes_a_request_that_does_not_fit_yet():
    world = World(num_blocks=8)
    world.add(request("first", range(20), max_tokens=8, arrival=0.0))
    world.step()
    world.add(request("large", range(50, 70), max_tokens=4, arrival=1.0))
    world.add(request("small", (1, 2), max_tokens=2, arrival=2.0))
    started = [start.request_id for step in world.drain() for start in step.starts]
    assert started == ["large", "small"]
    world.assert_idle()


def test_rows_that_lack_one_token_go_before_chunks_of_long_prompts():
    world = World(max_batch_tokens=6, max_rows=3)
    world.add(request("short", PROMPT[:3], max_tokens=8, arrival=1.0))
    world.step()
    world.add(request("long", range(20), max_tokens=1, arrival=0.0))
    step = world.step()
    assert [(work.count, work.samples) for work in step.work] == [(1, True), (5, False)]


def test_a_prompt_is_computed_in_chunks_and_sampled_only_when_it_has_caught_up():
    world = World(max_chunk_tokens=4)
    world.add(request("r", PROMPT, max_tokens=2))
    work = [work for step in world.drain() for work in step.work]
    assert [(item.start, item.count, item.samples) for item in work] == [
        (0, 4, False),
        (4, 4, False),
        (8, 2, True),
        (10, 1, True),
    ]


def test_a_step_never_exceeds_its_tokens_or_rows():
    world = World(max_batch_tokens=7, max_rows=3)
    for i in range(10):
        world.add(request(f"r{i}", range(i, i + 9), max_tokens=5))
    world.drain()  # each step is checked
    world.assert_idle()


def test_a_chunk_shrinks_to_the_blocks_at_hand_before_anybody_is_preempted():
    world = World(kv_spec(None, 4), num_blocks=12, prefix_caching=False)
    world.add(request("r", range(32), max_tokens=1))
    counts = [work.count for step in world.drain() for work in step.work]
    assert counts[0] == 24  # six blocks for each group, though the whole prompt was wanted
    assert sum(counts) == 32
    assert world.scheduler.stats().preemptions == 0


def test_prompts_in_progress_keep_the_blocks_they_will_need():
    world = World(num_blocks=10, max_chunk_tokens=4)
    world.add(request("long", range(32), max_tokens=1, arrival=0.0))
    world.add(request("other", range(50, 66), max_tokens=1, arrival=1.0))
    for _ in range(3):
        step = world.step()
        assert len(step.work) == 1, "the other's four blocks would be taken from the long one's eight"
    world.drain()
    assert world.scheduler.stats().preemptions == 0


def test_a_plan_without_work_is_none():
    world = World()
    assert world.scheduler.plan(0.0) is None
    assert not world.scheduler.has_work


def test_the_last_step_only_ends_rows():
    world = World()
    world.add(request("r", PROMPT, max_tokens=1))
    *_, last = world.drain()
    assert (last.work, last.ends) == ((), (0,))
    assert not world.device.rows
