"""The promises of cache and scheduler in 10^5 random steps; in twice as many with `make test-slow`.

`World` checks at every step that the books balance, that no row reads what is not its own, that what a client hears
is exactly what an undisturbed run would tell it, and that somebody of the first priority progresses; and at the end
that every admitted request has ended and nothing is left.
"""

from collections import Counter

import pytest
from random_world import RandomWorld

STEPS_AHEAD = (1, 0)
NUM_RUNS = 8  # with each of them, of which
NUM_QUICK_RUNS = 4  # are tried every time
STEPS_OF_A_RUN = 13_000
STEPS_OF_A_WORLD = 300
EVENTS = ("evicted_blocks", "preemptions", "cancelled", "cached_tokens", "failed")


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.slow] * (run >= NUM_QUICK_RUNS)) for run in range(NUM_RUNS)]
)
@pytest.mark.parametrize("steps_ahead", STEPS_AHEAD)
def test_random_worlds_keep_every_promise(steps_ahead, run):
    num_steps = num_copies = num_shared = 0
    happened: Counter[str] = Counter()
    seed = 1000 * run
    while num_steps < STEPS_OF_A_RUN:
        world = RandomWorld(seed, steps_ahead)
        for _ in range(STEPS_OF_A_WORLD):
            world.random_step()
        world.drain()
        world.assert_idle()
        stats = world.scheduler.stats()
        seed += 1
        num_steps += world.num_steps
        num_copies += world.num_copies
        num_shared += world.device.num_shared_reads
        happened.update({name: getattr(stats, name) for name in (*EVENTS, "planned_ahead", "discarded")})
        happened["held_back"] += stats.held_back.get("a test", 0)
    assert num_copies > 0 and num_shared > 0
    assert all(happened[name] > 0 for name in EVENTS), f"a run without all of these tests little: {happened}"
    if steps_ahead:
        assert all(happened[name] > 0 for name in ("planned_ahead", "discarded", "held_back"))


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_ten_thousand_aborts_at_random_points_leave_nothing(steps_ahead):
    num_cancelled, seed = 0, 500_000
    while num_cancelled < 10_000:
        world = RandomWorld(seed, steps_ahead, cancel_rate=0.9)
        for _ in range(2000):
            world.random_step()
        world.drain()
        world.assert_idle()
        num_cancelled += world.scheduler.stats().cancelled
        seed += 1
