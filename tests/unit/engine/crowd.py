"""A server as its admission sees it, on a clock that is computed: rows that are held for a while, a queue, and clients who
come whether or not they are answered, and come back once when they were told to."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from trivium.engine.admission import Admission
from trivium.types.errors import OverloadedError
from trivium.types.request import Request, Sampling, Stopping


@dataclass
class Outcome:
    first_tries: int = 0
    let_in_first: int = 0
    second_tries: int = 0
    let_in_second: int = 0
    ended: int = 0  # while newcomers came
    busy_seconds: float = 0.0  # of rows, while newcomers came
    told: list[float] = field(default_factory=list)  # seconds to come back after

    @property
    def obeyed_in_vain(self) -> float:
        return 1.0 - self.let_in_second / max(self.second_tries, 1)


class Crowd:
    def __init__(
        self,
        *,
        rows: int,
        waiting: int,
        service: Callable[[random.Random], float],
        mean_service: float,
        overload: float,
        seconds: float,
        comes_back: float = 1.0,
        seed: int = 0,
    ) -> None:
        """`overload`: newcomers, in multiples of what can be done; `comes_back`: the share of the refused who do."""
        self._random = random.Random(seed)
        self._rows = rows
        self._service = service
        self._rate = overload * rows / mean_service
        self._seconds = seconds
        self._comes_back = comes_back
        self._admission = Admission(rows, waiting, None)
        self._running = 0
        self._queue: list[Request] = []
        self._events: list[tuple[float, int, str, int]] = []  # when, tie-breaker, what, of whom
        self._requests: dict[int, Request] = {}
        self._num_events = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        self._at(0.0, "newcomer", 0)
        while self._events:
            now, _, what, client = heapq.heappop(self._events)
            if what == "newcomer":
                self._at(now + self._random.expovariate(self._rate), "newcomer", client + 1)
                if now > self._seconds:
                    self._events = [event for event in self._events if event[2] != "newcomer"]
                    continue
                self._try(client, now, is_first=True)
            elif what == "again":
                self._try(client, now, is_first=False)
            else:
                self._end(client, now)
        return self.outcome

    def _at(self, when: float, what: str, client: int) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, what, client))

    def _try(self, client: int, now: float, *, is_first: bool) -> None:
        outcome = self.outcome
        request = Request(f"{client}", (1,) * 10, Sampling(seed=0), Stopping(5), arrival=now)
        outcome.first_tries += is_first
        outcome.second_tries += not is_first
        try:
            place = self._admission.knock(0, client, now)
            self._admission.check(request, now, place)
        except OverloadedError as refusal:
            outcome.told.append(refusal.retry_after)
            if is_first and self._random.random() < self._comes_back:
                self._at(now + refusal.retry_after, "again", client)
            return
        outcome.let_in_first += is_first
        outcome.let_in_second += not is_first
        self._requests[client] = request
        self._admission.sent(request)
        self._queue.append(request)
        self._start(now)

    def _start(self, now: float) -> None:
        while self._queue and self._running < self._rows:
            request = self._queue.pop(0)
            self._running += 1
            seconds = self._service(self._random)
            self.outcome.busy_seconds += max(min(now + seconds, self._seconds) - now, 0.0)
            self._at(now + seconds, "end", int(request.id))

    def _end(self, client: int, now: float) -> None:
        self._running -= 1
        self.outcome.ended += now <= self._seconds
        self._admission.sequence_ended(self._requests.pop(client), now)
        self._start(now)
