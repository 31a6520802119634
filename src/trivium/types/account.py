"""Where a sequence's time went in the engine: causes that sum to it, and the counts that explain them."""

from __future__ import annotations

from msgspec import Struct


class Account(Struct, frozen=True, omit_defaults=True):
    """Of one sequence, from its request's arrival to its end. Times are seconds of CLOCK_MONOTONIC."""

    arrival: float  # Request.arrival
    ended: float

    # The causes. Their sum is `ended - arrival`: each moment has exactly one.
    handover: float = 0.0  # until the engine's loop took it in: the step under way had to end first
    grammar: float = 0.0  # for its grammar to be compiled, or for a mask that its next token had to wait for
    queued: float = 0.0  # for room
    prompt: float = 0.0  # in steps that computed tokens of its prompt
    decode: float = 0.0  # in steps that computed next tokens only
    decode_beside_prompts: float = 0.0  # in steps that computed its next token, and prompts of others
    preempted: float = 0.0  # for room, once it had begun
    recomputed: float = 0.0  # in steps that computed again what a preemption took
    waited: float = 0.0  # while it had a row, for steps in which it had no part, and between steps

    # What explains them.
    num_ahead: int = 0  # sequences that waited before it when it came
    why_queued: str = ""  # what was wanting; "": it waited for the next step to begin
    num_chunks: int = 0  # steps that computed its prompt
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    why_missed: str = ""  # why the first block that was not found was not
    num_steps: int = 0  # of the engine while it decoded
    num_rows: int = 0  # that decoded in these steps, summed over them: divided by num_steps, the batch it was in
    num_replayed: int = 0  # of these steps, computed by a recorded graph
    num_preemptions: int = 0
    preempted_by: str = ""  # the request that the last preemption made room for

    # What it cost: of each step's seconds its tokens' share. Over all sequences that is the time of all steps.
    engine_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.arrival

    def causes(self) -> dict[str, float]:
        """Seconds by cause, in the order in which they usually come."""
        return {name: getattr(self, name) for name in CAUSES}


CAUSES = (
    "handover",
    "grammar",
    "queued",
    "prompt",
    "decode",
    "decode_beside_prompts",
    "preempted",
    "recomputed",
    "waited",
)
