"""What steps have cost so far. A sequence reads it when it begins to decode and when it ends: so its share of many
steps is known without a word about each. Only of a step in which it had no part it must be told."""

from __future__ import annotations

from msgspec import Struct

NEWEST = 0.1  # weight of a new step in the mean of late ones


class Reading(Struct, frozen=True):
    """Sums since the start."""

    steps: int = 0
    replayed: int = 0
    rows: int = 0  # that computed one token
    decode: float = 0.0  # seconds of steps without prompts
    beside_prompts: float = 0.0  # seconds of steps in which some row computed more than its next token
    per_token: float = 0.0  # seconds of each step divided by its tokens

    def plus(self, more: Reading) -> Reading:
        return Reading(
            self.steps + more.steps,
            self.replayed + more.replayed,
            self.rows + more.rows,
            self.decode + more.decode,
            self.beside_prompts + more.beside_prompts,
            self.per_token + more.per_token,
        )

    def since(self, before: Reading) -> Reading:
        return Reading(
            self.steps - before.steps,
            self.replayed - before.replayed,
            self.rows - before.rows,
            self.decode - before.decode,
            self.beside_prompts - before.beside_prompts,
            self.per_token - before.per_token,
        )


class Odometer:
    """A step's time is counted from the commit of the one before, or from its own plan where that is later. So no moment
    is counted twice, also where steps overlap."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._before_last = self.reading
        self.prompt_token_seconds = 0.0  # of late, in steps with prompts: their seconds for each of their tokens
        self._last_commit = 0.0

    @property
    def last(self) -> Reading:
        """Of the last step alone."""
        return self.reading.since(self._before_last)

    def turn(self, planned: float, committed: float, num_rows: int, num_tokens: int, *, replayed: bool) -> float:
        """Returns the step's seconds."""
        seconds = committed - max(self._last_commit, planned)
        self._last_commit = committed
        before = self._before_last = self.reading
        has_prompts = num_tokens > num_rows
        if has_prompts:
            before_it = self.prompt_token_seconds or seconds / num_tokens
            self.prompt_token_seconds = before_it + NEWEST * (seconds / num_tokens - before_it)
        self.reading = Reading(
            before.steps + 1,
            before.replayed + replayed,
            before.rows + num_rows,
            before.decode + (0.0 if has_prompts else seconds),
            before.beside_prompts + (seconds if has_prompts else 0.0),
            before.per_token + seconds / max(num_tokens, 1),
        )
        return seconds
