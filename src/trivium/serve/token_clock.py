"""When tokens reach who asked for them: for a stream, when the piece that tells them was written to its connection; for an
answer that is told whole, when they were there."""

from __future__ import annotations

import time

from trivium.observe.events import FirstToken, TokensHanded
from trivium.serve.models.served import ServedModel
from trivium.serve.request_times import RequestTimes


class TokenClock:
    """Of the sequences of one prompt. Tokens that have no text yet are handed on with the next that have."""

    def __init__(self, model: ServedModel, job_id: str, times: RequestTimes | None) -> None:
        """`times`: of the request; None: nobody waits for it, and it begins now."""
        self._model = model
        self._job_id = job_id
        self._times = times
        self._began = time.monotonic() if times is None else times.began
        self._came: dict[int, int] = {}  # by sequence: tokens that were not handed on
        self._came_at = self._began  # the last of them
        self._last: dict[int, float] = {}  # by sequence: when its last piece was handed on

    def came(self, index: int, count: int) -> None:
        self._came[index] = self._came.get(index, 0) + count
        self._came_at = time.monotonic()

    def taken(self) -> None:
        """Who asked has dealt with what came, and wants more."""
        times = self._times
        if times is None or not times.streams:
            self._hand_on(time.monotonic())
        elif times.last_write >= self._came_at:
            self._hand_on(times.last_write)

    def _hand_on(self, now: float) -> None:
        if self._came and not self._last:
            self._model.emit(FirstToken(self._job_id, self._model.name, now - self._began))
            if self._times is not None:
                self._times.first_token(now)
        for index, count in self._came.items():
            before = self._last.get(index)
            num_later = (
                count if before is not None else count - 1
            )  # who comes with a sequence's first waits for nothing more
            if num_later:
                waited = 0.0 if before is None else now - before
                self._model.emit(TokensHanded(self._job_id, self._model.name, index, num_later, waited))
                if self._times is not None:
                    self._times.more_tokens(num_later, waited)
            self._last[index] = now
        self._came.clear()
