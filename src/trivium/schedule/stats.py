"""Where the scheduler stands and what it has counted since its start."""

from __future__ import annotations

from msgspec import Struct


class SchedulerStats(Struct, frozen=True):
    # now
    running: int  # sequences
    waiting: int
    free_blocks: int
    held_blocks: int
    cached_blocks: int  # held by nobody, kept for reuse
    # ever
    preemptions: int
    evicted_blocks: int
    prompt_tokens: int  # of requests that began to run, each counted once
    cached_tokens: int  # of these, found in the prefix cache, when they began or when they resumed
    generated_tokens: int
    queue_seconds: float  # sum over requests from arrival to their first step
    ended_by_stop: int  # sequences, as are the next three
    ended_by_length: int
    cancelled: int
    failed: int
    planned_ahead: int  # positions planned before their token was known
    discarded: int  # positions computed for sequences that had ended meanwhile
    held_back: dict[str, int]  # times a sequence could not be planned ahead, by reason
    prompt_token_seconds: float = (
        0.0  # of late: seconds of steps with prompts for each of their tokens; 0: there was none
    )
    # Of `prompt_tokens`, beside those found: computed once, and left by requests that ended before. While some of them are
    # still to come, the three are less than all.
    computed_prompt_tokens: int = 0
    left_prompt_tokens: int = 0
    recomputed_tokens: int = (
        0  # computed again: after a preemption or a failed step, and for further answers to a prompt
    )
    moved_bytes: int = 0  # of blocks that were copied, for those who went on from them differently
    taken_blocks: int = 0  # less those freed: held and cached ones
    freed_blocks: int = 0
    failed_steps: int = 0  # given up as a whole
    suspects: int = 0  # now: sequences that had a part in one, and run one by one
