"""Worlds of random shape with clients that come, go and interfere at random; the same seed gives the same story."""

from __future__ import annotations

import random

from world import World, kv_spec, request

from trivium.types.errors import NeverFitsError
from trivium.types.request import BACKGROUND_PRIORITY
from trivium.types.step import RowWork

NEEDS_HOST = 2  # the seed of requests that are not planned ahead
WINDOWS = [(None,), (None, None), (5,), (None, 6), (4, None, 4), (3, 9), (1, None), (8, None, None)]


class RandomWorld(World):
    def __init__(
        self, seed: int, steps_ahead: int, cancel_rate: float = 0.06, break_rate: float = 0.0, poison_rate: float = 0.0
    ) -> None:
        """`break_rate`: of steps that fail as a whole by chance; `poison_rate`: of requests whose every step does."""
        self.random = rng = random.Random(seed)
        windows = rng.choice(WINDOWS)
        super().__init__(
            kv_spec(*windows, block_size=rng.choice([1, 2, 3, 4, 8])),
            num_blocks=len(windows) * rng.choice([rng.randint(3, 8), rng.randint(8, 40)]),
            max_rows=rng.choice([1, 2, 4, 8]),
            max_batch_tokens=rng.choice([1, 3, 8, 32, 128]),
            max_chunk_tokens=rng.choice([None, 1, 2, 7]),
            max_model_len=rng.choice([16, 40, 64]),
            max_background_tokens=rng.choice([0, 1, 5]),
            prefix_caching=rng.random() < 0.8,
            easy_blocks=rng.choice([None, None, 0, 10]),
            steps_ahead=steps_ahead,
            needs_host=lambda request: "a test" if request.sampling.seed == NEEDS_HOST else None,
        )
        self._seed = seed
        self._cancel_rate = cancel_rate
        self._break_rate = break_rate
        self._poison_rate = poison_rate
        self.poisoned: set[str] = set()
        self._most_tokens = rng.choice([1, 1, 3])  # drawn for a row in one step
        self._prefixes = [tuple(rng.randrange(8) for _ in range(rng.randint(1, 20))) for _ in range(3)]
        self._ids: list[str] = []

    def random_step(self) -> None:
        rng = self.random
        if rng.random() < 0.3 and self.scheduler.stats().waiting < 12:
            self._add_some()
        self._interfere()
        self.step(
            num_tokens=self._num_tokens,
            fails=lambda work: rng.random() < 0.01,
            is_late=self._is_late,
            meanwhile=self._interfere,
            breaks=lambda request_ids: rng.random() < self._break_rate or self._is_poisoned(request_ids),
        )

    def _num_tokens(self, work: RowWork) -> int:
        """Several are drawn only where no later step counts on one."""
        needs_host = self.device.rows[work.row].request.sampling.seed == NEEDS_HOST
        return self.random.randint(1, self._most_tokens) if needs_host or not self.steps_ahead else 1

    def _is_late(self, row: int) -> bool:
        """Only rows that are not planned ahead may be."""
        return self.device.rows[row].request.sampling.seed == NEEDS_HOST and self.random.random() < 0.4

    def _add_some(self) -> None:
        """One alone, or some together whose prompts begin alike."""
        prefix = self.random.choice(self._prefixes)[: self.random.randint(1, 20)]
        for _ in range(self.random.choice([1, 1, 5])):
            self._add_one(prefix)

    def _add_one(self, prefix: tuple[int, ...]) -> None:
        rng = self.random
        asked = request(
            f"{self._seed}-{len(self._ids)}",
            prefix + tuple(rng.randrange(8) for _ in range(rng.randint(0, 6))),
            rng.randint(1, 16),
            arrival=self.now - 3 * rng.random(),
            n=rng.choice([1, 1, 1, 2, 4]),
            priority=rng.choice([0, 0, 0, 1, BACKGROUND_PRIORITY]),
            salt=rng.choice(["", "", "other"]),
            min_tokens=rng.choice([0, 0, 3]),
            stop=rng.choice([(), (1,), (1, 2)]),
            logprobs=rng.choice([None, 0]),
            prompt_logprobs=rng.choice([None, None, None, 0]),
            seed=rng.choice([1, 1, 1, NEEDS_HOST]),
        )
        try:
            self.add(asked)
        except NeverFitsError:
            return
        self._ids.append(asked.id)
        if self._poison_rate and rng.random() < self._poison_rate:
            self.poisoned.add(asked.id)

    def _is_poisoned(self, request_ids: set[str]) -> bool:
        return not self.poisoned.isdisjoint(request_ids)

    def _interfere(self) -> None:
        rng = self.random
        if self._ids and rng.random() < self._cancel_rate:
            self.cancel(rng.choice(self._ids[-12:]), rng.choice([None, None, 0, 1]))
        if self._ids and rng.random() < 0.06:
            self.scheduler.preempt(rng.choice(self._ids[-12:]))
