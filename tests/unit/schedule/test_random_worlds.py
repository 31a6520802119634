"""The promises of cache and scheduler in 10^5 random steps.

`World` checks at every step that the books balance, that no row reads what is not its own, that what a client hears
is exactly what an undisturbed run would tell it, and that somebody of the first priority progresses; and at the end
that every admitted request has ended and nothing is left.
"""

import pytest
from random_world import RandomWorld

NUM_RUNS = 25
STEPS_OF_A_RUN = 4200
STEPS_OF_A_WORLD = 300


@pytest.mark.parametrize("run", range(NUM_RUNS))
def test_random_worlds_keep_every_promise(run):
    num_steps = num_copies = num_evicted = num_preempted = num_cancelled = num_cached = num_shared = num_failed = 0
    seed = 1000 * run
    while num_steps < STEPS_OF_A_RUN:
        world = RandomWorld(seed)
        for _ in range(STEPS_OF_A_WORLD):
            world.random_step()
        world.drain()
        world.assert_idle()
        stats = world.scheduler.stats()
        seed += 1
        num_steps += world.num_steps
        num_copies += world.num_copies
        num_evicted += stats.evicted_blocks
        num_preempted += stats.preemptions
        num_cancelled += stats.cancelled
        num_cached += stats.cached_tokens
        num_shared += world.device.num_shared_reads
        num_failed += stats.failed
    for count in (num_copies, num_evicted, num_preempted, num_cancelled, num_cached, num_shared, num_failed):
        assert count > 0, "a run without forks, evictions, preemptions, aborts, hits, sharing or failures tests little"


def test_ten_thousand_aborts_at_random_points_leave_nothing():
    num_cancelled, seed = 0, 500_000
    while num_cancelled < 10_000:
        world = RandomWorld(seed, cancel_rate=0.9)
        for _ in range(2000):
            world.random_step()
        world.drain()
        world.assert_idle()
        num_cancelled += world.scheduler.stats().cancelled
        seed += 1
