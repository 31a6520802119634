import pytest
from world import World, kv_spec, request

from trivium.cache.block_cache import BlockCache
from trivium.schedule.odometer import Odometer
from trivium.schedule.open_account import OpenAccount
from trivium.schedule.sequence import Family, sampling_of, sequence_seed
from trivium.types.delta import FinishReason

PROMPT = tuple(range(100, 110))
LENGTHS = [1, 2, 7, 8, 9, 12, 13]  # around the ends of blocks of 4


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("windows", [(None,), (6,), (None, 5)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_all_sequences_of_a_request_run_to_their_own_ends(length, windows, prefix_caching):
    world = World(kv_spec(*windows), num_blocks=80, prefix_caching=prefix_caching)
    world.add(request("r", range(length), max_tokens=9, n=4))
    world.drain()
    world.assert_idle()
    answers = {tuple(world.heard["r", i].tokens) for i in range(4)}
    assert len(answers) == 4  # the fake model draws differently for each


def test_the_prompt_is_computed_once_and_only_its_last_token_by_each():
    world = World()
    world.add(request("r", PROMPT, max_tokens=2, n=3))
    steps = world.drain()
    assert [[(work.start, work.count) for work in step.work] for step in steps] == [
        [(0, 10)],
        [(10, 1), (9, 1), (9, 1)],
        [(10, 1), (10, 1)],
        [],
    ]
    assert len(steps[1].copies) == 2


def test_siblings_do_not_wait_for_one_another_to_save_less_than_a_block():
    world = World()
    world.add(request("r", PROMPT, max_tokens=1, n=4))  # the first ends before the others could share its last block
    assert [len(step.work) for step in world.drain()] == [1, 3, 0]
    world.add(request("short", PROMPT[:4], max_tokens=1, n=4, salt="other"))
    assert [len(step.work) for step in world.drain()] == [4, 0]


def test_a_forked_sequence_holds_but_one_block_more():
    world = World(prefix_caching=False)
    world.add(request("r", range(30), max_tokens=5, n=4))
    world.step()
    assert world.scheduler.stats().held_blocks == 8
    world.step()
    assert world.scheduler.stats().held_blocks == 8 + 3


def test_siblings_wait_while_the_prompt_is_computed_in_chunks():
    world = World(max_chunk_tokens=4)
    world.add(request("r", PROMPT, max_tokens=3, n=2))
    assert [len(world.step().work) for _ in range(4)] == [1, 1, 1, 2]
    world.drain()
    world.assert_idle()


def test_others_are_admitted_past_siblings_that_wait():
    world = World(max_chunk_tokens=4)
    world.add(request("r", PROMPT, max_tokens=3, n=3, arrival=0.0))
    world.add(request("other", (1, 2), max_tokens=3, arrival=1.0))
    step = world.step()
    assert [start.request_id for start in step.starts] == ["r", "other"]
    world.drain()
    world.assert_idle()


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_siblings_run_on_when_the_first_is_cancelled(num_steps, prefix_caching):
    world = World(max_chunk_tokens=4, prefix_caching=prefix_caching)
    world.add(request("r", PROMPT, max_tokens=5, n=3))
    for _ in range(num_steps):
        world.step()
    world.cancel("r", 0)
    world.drain()
    world.assert_idle()
    assert [world.heard["r", i].reason for i in (1, 2)] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_siblings_run_on_when_the_first_fails(num_steps):
    world = World(max_chunk_tokens=4)
    world.add(request("r", PROMPT, max_tokens=5, n=3))
    for _ in range(num_steps - 1):
        world.step()
    world.step(fails=lambda work: world.device.rows[work.row].start.index == 0)
    assert world.heard["r", 0].reason is FinishReason.ERROR
    world.drain()
    world.assert_idle()
    assert [world.heard["r", i].reason for i in (1, 2)] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_siblings_run_on_when_the_first_is_preempted(num_steps):
    world = World(max_chunk_tokens=4)
    world.add(request("r", PROMPT, max_tokens=5, n=3))
    for _ in range(num_steps):
        world.step()
    world.scheduler.preempt("r")
    world.drain()
    world.assert_idle()


def test_siblings_run_when_the_first_ended_before_there_was_a_row_for_them():
    world = World(max_rows=1)
    world.add(request("r", PROMPT, max_tokens=3, n=3))
    world.drain()
    world.assert_idle()


def test_a_late_sibling_whose_window_has_slid_away_computes_what_it_misses():
    world = World(kv_spec(None, 4), max_rows=2, prefix_caching=False)
    world.add(request("r", PROMPT, max_tokens=12, n=1, arrival=0.0))
    world.add(request("s", PROMPT, max_tokens=12, n=3, arrival=1.0))
    world.drain()
    world.assert_idle()


def test_all_siblings_tell_what_the_request_found_in_the_cache():
    world = World()
    world.add(request("before", PROMPT, max_tokens=1))
    world.drain()
    world.add(request("r", PROMPT, max_tokens=2, n=3))
    world.drain()
    assert [world.heard["r", i].num_cached_tokens for i in range(3)] == [8, 8, 8]
    stats = world.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (20, 8)


def test_only_the_first_sequence_tells_prompt_logprobs():
    world = World()
    world.add(request("r", PROMPT, max_tokens=2, n=2, prompt_logprobs=0))
    starts = [start for step in world.drain() for start in step.starts]
    assert [start.sampling.prompt_logprobs for start in starts] == [0, None]
    world.assert_idle()


def test_each_sequence_draws_with_a_seed_of_its_own():
    seeds = [sampling_of(request("r", PROMPT, seed=42, n=100), index).seed for index in range(100)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_the_seeds_of_neighbouring_requests_do_not_meet():
    drawn = [sequence_seed(seed, index) for seed in range(50) for index in range(50)]
    assert len(set(drawn)) == len(drawn)


def test_the_rows_are_told_those_seeds():
    world = World()
    asked = request("r", PROMPT, max_tokens=2, n=3, seed=7)
    world.add(asked)
    starts = [start for step in world.drain() for start in step.starts]
    assert [start.sampling.seed for start in starts] == [sequence_seed(7, index) for index in range(3)]


def test_a_sequence_that_owes_prompt_logprobs_cannot_take_over_a_computed_prompt():
    cache = BlockCache(kv_spec(), 8)
    asked = request("r", PROMPT, n=2, prompt_logprobs=0)
    first, second = Family(asked, cache, 64, None, lambda: OpenAccount(Odometer(), 0, 0, 0, 0, 0)).sequences
    assert (first.may_reuse_prompt, second.may_reuse_prompt) == (False, True)
    assert (len(first.reusable_tokens), len(second.reusable_tokens)) == (1, len(PROMPT))


def test_nobody_copies_a_block_that_the_same_step_fills():
    """Two siblings resume, of which the second shares what the first is about to compute; a third begins beside them."""
    world = World(num_blocks=10, max_rows=3)
    world.add(request("other", range(50, 53), max_tokens=30))
    world.add(request("family", range(100, 112), max_tokens=9, n=3))
    for _ in range(3):
        world.step()
    begun = [index for index in range(3) if world.heard[("family", index)].tokens]
    assert begun == [0, 1]
    world.scheduler.preempt("family")
    world.cancel("other")
    world.add(request("large", range(200, 228), max_tokens=4, priority=-1))  # takes the prompt's last block, not all
    while world.heard[("large", 0)].reason is None:
        world.step()
    step = world.step()
    assert {start.index for start in step.starts} == {0, 1, 2}
    world.drain()
    world.assert_idle()
