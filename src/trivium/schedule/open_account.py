"""A sequence's account while it lives: every moment up to `_since` has been put under a cause."""

from __future__ import annotations

from enum import Enum

from trivium.schedule.odometer import Odometer, Reading
from trivium.types.account import Account


class Phase(Enum):
    WAITING = "waiting"
    CATCHING_UP = "catching up"  # it computes tokens that it knows: the prompt, or what a preemption took
    DECODING = "decoding"
    LATE = "late"  # its next token waits for a mask


class OpenAccount:
    __slots__ = ("_arrival", "_counts", "_engine_seconds", "_odometer", "_reading", "_seconds", "_since", "phase")

    def __init__(
        self, odometer: Odometer, arrival: float, now: float, num_ahead: int, num_prompt: int, grammar: float
    ) -> None:
        """`grammar`: seconds that it has waited for one, before it was queued now."""
        self._odometer = odometer
        self._arrival = arrival
        self._since = now
        self._reading = Reading()
        self._engine_seconds = 0.0
        self._seconds = {"handover": now - grammar - arrival, "grammar": grammar}
        self._counts: dict[str, int | str] = {"num_ahead": num_ahead, "num_prompt_tokens": num_prompt}
        self.phase = Phase.WAITING

    def start(self, now: float, why_waited: str) -> None:
        """It has a row and is in the step being planned. `why_waited`: what was wanting in the last plan without it."""
        if self._is_resuming:
            self._put("preempted", now)
        else:
            self._put("queued", now)
            self._counts["why_queued"] = why_waited
        self.phase = Phase.CATCHING_UP

    def found(self, num_cached: int, why_missed: str) -> None:
        self._counts["num_cached_tokens"] = num_cached
        self._counts["why_missed"] = why_missed

    def chunk(self, now: float, step_seconds: float, share: float, *, caught_up: bool) -> None:
        """A step computed tokens that it knew, which were this share of all it computed; with `caught_up` also its next."""
        began = max(self._since, now - step_seconds)
        self._put("waited", began)
        self._put("recomputed" if self._is_resuming else "prompt", now)
        self._count("num_chunks", not self._is_resuming)
        self._engine_seconds += share * step_seconds
        if caught_up:
            self._decode()

    def sit_out(self) -> None:
        """The last step was made without it."""
        if self.phase is Phase.DECODING:
            self._reading = self._reading.plus(self._odometer.last)

    def late(self, now: float) -> None:
        self._settle(now)
        self.phase = Phase.LATE

    def came(self, now: float) -> None:
        """The token that was late."""
        self._put("grammar", now)
        self._decode()

    def preempt(self, now: float, by: str) -> None:
        self._settle(now)
        self._count("num_preemptions", 1)
        self._counts["preempted_by"] = by
        self.phase = Phase.WAITING

    def close(self, now: float) -> Account:
        self._settle(now)
        costs = {"engine_seconds": self._engine_seconds}
        return Account(self._arrival, now, **self._seconds, **self._counts, **costs)  # type: ignore[arg-type]

    @property
    def since(self) -> float:
        """Up to when its time has been put under causes; of one that waits, when it began to."""
        return self._since

    @property
    def _is_resuming(self) -> bool:
        return "num_preemptions" in self._counts

    def _decode(self) -> None:
        self.phase = Phase.DECODING
        self._reading = self._odometer.reading

    def _settle(self, now: float) -> None:
        """All up to now is put under the cause of the present phase."""
        match self.phase:
            case Phase.WAITING:
                self._put("preempted" if self._is_resuming else "queued", now)
            case Phase.CATCHING_UP:
                self._put("waited", now)
            case Phase.LATE:
                self._put("grammar", now)
            case Phase.DECODING:
                steps = self._odometer.reading.since(self._reading)
                self._put("decode", self._since + steps.decode)
                self._put("decode_beside_prompts", self._since + steps.beside_prompts)
                self._put("waited", now)
                self._count("num_steps", steps.steps)
                self._count("num_rows", steps.rows)
                self._count("num_replayed", steps.replayed)
                self._engine_seconds += steps.per_token

    def _put(self, cause: str, until: float) -> None:
        self._seconds[cause] = self._seconds.get(cause, 0.0) + until - self._since
        self._since = until

    def _count(self, name: str, count: int) -> None:
        self._counts[name] = int(self._counts.get(name, 0)) + count
