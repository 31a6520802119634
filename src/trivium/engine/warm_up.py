"""First uses at the start: kernels are compiled, and libraries choose theirs, before anybody waits for a token.

The steps are those that real prompts make: short and long ones, alone, many at once, beside rows that decode, and
behind a beginning that an earlier step computed. They write in blocks that nobody has yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trivium.config.resolve import EngineConfig
from trivium.engine.plan import scheduler_limits
from trivium.execute.runner import Runner
from trivium.kernels.attention import PLANNED_LENGTHS
from trivium.schedule.scheduler import Scheduler
from trivium.types.request import Request, Sampling, Stopping

SHORT, MIDDLE, LONG = 40, 500, 1200  # tokens; products of experts are cut in another way for each
MANY = 64  # rows
NEW_TOKENS = 3
GREEDY = Sampling(seed=0, temperature=0.0)
FILTERED = Sampling(seed=0, temperature=1.0, top_p=0.9)
BIASED = Sampling(seed=0, temperature=1.0, logit_bias=((0, 1.0),))  # from other logits than the model's own, unfiltered


def warm_up(config: EngineConfig, runner: Runner, vocab_size: int) -> None:
    scheduler = _scheduler_aside(config)
    full = _full_chunk(scheduler)
    for prompts, later, sampling in (
        ([SHORT], SHORT, FILTERED),  # attention of a row with so few keys is not split
        ([SHORT], MIDDLE, BIASED),
        ([SHORT] * min(MANY, scheduler.limits.max_rows - 1), LONG, GREEDY),
        ([full + MIDDLE], None, GREEDY),
        ([full // 2 + 3], None, GREEDY),  # libraries have other kernels for lengths that are no multiple of theirs
        *(([length], None, GREEDY) for length in range(PLANNED_LENGTHS, full, PLANNED_LENGTHS)),
    ):
        _serve(scheduler, runner, prompts, later, vocab_size, sampling)


def prompts_of_all_lengths(config: EngineConfig, runner: Runner, vocab_size: int) -> None:
    """Close enough to each other that every way in which work is cut by its size comes up."""
    scheduler = _scheduler_aside(config)
    full = _full_chunk(scheduler)
    for length in sorted({min(full, round(2 ** (half / 2))) for half in range(2 * full.bit_length() + 1)}):
        _serve(scheduler, runner, [length], None, vocab_size)


def _scheduler_aside(config: EngineConfig) -> Scheduler:
    """It shares nothing with others, and refuses nothing."""
    limits = replace(scheduler_limits(config), prefix_caching=False, max_waiting=None)
    return Scheduler(limits, config.kv, config.num_blocks)


def _full_chunk(scheduler: Scheduler) -> int:
    return scheduler.limits.max_chunk_tokens or scheduler.limits.max_batch_tokens


def _serve(
    scheduler: Scheduler,
    runner: Runner,
    prompts: Sequence[int],
    later: int | None,
    vocab_size: int,
    sampling: Sampling = GREEDY,
) -> None:
    """Prompts of these lengths, and one that comes when they decode."""
    for index, length in enumerate(prompts):
        scheduler.add(_request(str(index), length, scheduler.longest, vocab_size, sampling))
    num_steps = 0
    while (step := scheduler.plan(now=0.0)) is not None:
        scheduler.commit(runner.result(runner.launch(step)), now=0.0)
        num_steps += 1
        if num_steps == 1 and later is not None and scheduler.limits.max_rows > 1:
            scheduler.add(_request("later", later, scheduler.longest, vocab_size, sampling))


def _request(name: str, length: int, longest: int, vocab_size: int, sampling: Sampling) -> Request:
    """`longest`: tokens that a sequence may have."""
    num_new = min(NEW_TOKENS, longest - 1)
    prompt = tuple(place % vocab_size for place in range(min(length, longest - num_new)))
    return Request(name, prompt, sampling, Stopping(max_tokens=num_new), arrival=0.0)
