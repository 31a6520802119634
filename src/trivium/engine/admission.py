"""Who is let through to the engine. The engine reads its messages between steps, and steps may be long; so what is too much is
refused on this side of the line, at once, from what is known here: who is under way, and how fast the engine has been.
"""

from __future__ import annotations

from collections import Counter

from trivium.schedule.pace import Pace
from trivium.types.errors import OverloadedError
from trivium.types.request import Request


class Admission:
    """Of one engine process. Times are seconds of CLOCK_MONOTONIC."""

    def __init__(self, max_rows: int, max_waiting: int, max_first_token_seconds: float | None) -> None:
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._max_first_token_seconds = max_first_token_seconds
        self._pace = Pace()
        self._prompt_token_seconds = 0.0  # of the engine's steps, for each token of prompts; 0: not known yet
        self._sequences: Counter[int] = Counter()  # under way, by priority
        self._prompts: dict[str, tuple[int, int]] = {}  # priority and tokens of prompts whose first token has not come

    def check(self, request: Request, now: float) -> None:
        """Raises OverloadedError with the numbers and when to come back."""
        priority = request.priority
        num_before = sum(count for other, count in self._sequences.items() if other <= priority)
        num_waiting = num_before - self._max_rows
        if num_waiting >= self._max_waiting:
            raise OverloadedError(
                f"{max(num_waiting, 0)} sequences wait for a row already, and at most {self._max_waiting} may",
                retry_after=self._pace.promise(now),
            )
        limit = self._max_first_token_seconds
        if limit is None:
            return
        expected = self.first_token_seconds(request)
        if expected > limit:
            raise OverloadedError(
                f"the first token is expected in {expected:.1f} s, and more than {limit:g} s are not promised here",
                retry_after=max(expected - limit, self._pace.promise(now)),
            )

    def first_token_seconds(self, request: Request) -> float:
        """When its first token may be expected: after all prompts before it and its own, and after so many ends that it has a
        row. What the prefix cache will spare is not known here, nor what comes before it later."""
        priority = request.priority
        tokens = sum(tokens for other, tokens in self._prompts.values() if other <= priority) + len(request.prompt)
        num_before = sum(count for other, count in self._sequences.items() if other <= priority)
        num_ends = max(0, num_before + 1 - self._max_rows)
        return tokens * self._prompt_token_seconds + num_ends * self._pace.between_ends

    def sent(self, request: Request) -> None:
        if not self._sequences:
            self._pace.begins(request.arrival)
        self._sequences[request.priority] += request.n
        self._prompts[request.id] = request.priority, len(request.prompt)

    def began(self, request: Request) -> None:
        """Its first token came."""
        self._prompts.pop(request.id, None)

    def sequence_ended(self, request: Request, now: float) -> None:
        self.began(request)
        self._pace.ended(now, is_awaited=self._sequences.total() > self._max_rows)
        self._forget(request, 1)

    def gone(self, request: Request, num_left: int) -> None:
        """The request is over, with so many sequences that never ended of themselves."""
        self.began(request)
        self._forget(request, num_left)

    def hear(self, prompt_token_seconds: float) -> None:
        self._prompt_token_seconds = prompt_token_seconds

    def _forget(self, request: Request, count: int) -> None:
        self._sequences[request.priority] -= count
        if self._sequences[request.priority] <= 0:
            del self._sequences[request.priority]
