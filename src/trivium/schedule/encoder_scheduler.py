"""Who is encoded next. Each text is computed whole in one step; a step takes texts in order until its tokens are spent.

    step = scheduler.plan(now)                   # None: nothing waits
    deltas = scheduler.commit(run(step), now)

The order is that of rank: priority, arrival, id. Beside others, one background text goes with each step, so that those who
wait hardly notice and it still gets on. There are no blocks and no rows: a text holds nothing before its step or after.

A step that fails as a whole is given up (`abandon`), and each of its texts goes alone before any other; one whose step then
fails again was the cause and ends with an error.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.pace import Pace
from trivium.schedule.stats import SchedulerStats
from trivium.types.delta import Delta, FinishReason
from trivium.types.encode import EncodeResult, EncodeStep, EncodeText
from trivium.types.errors import ConfigError, InvalidRequestError, OverloadedError
from trivium.types.request import BACKGROUND_PRIORITY, Request


@dataclass(frozen=True)
class _InFlight:
    id: int
    requests: tuple[Request, ...]
    planned: float  # when


class EncoderScheduler:
    def __init__(self, limits: SchedulerLimits) -> None:
        if limits.max_batch_tokens < limits.max_model_len:
            raise ConfigError(
                f"a step computes {limits.max_batch_tokens} tokens, and a text of {limits.max_model_len} must fit in one"
            )
        self.limits = limits
        self._waiting: list[Request] = []  # in order of rank
        self._known: dict[str, Request] = {}  # waiting or in flight, by id
        self._in_flight: _InFlight | None = None
        self._suspects: set[str] = set()  # ids of texts whose step has failed
        self._deltas: list[Delta] = []  # of cancels, not yet told
        self._next_step_id = 0
        self._pace = Pace()
        self._num_prompt_tokens = 0
        self._queue_seconds = 0.0
        self._num_ended = dict.fromkeys(FinishReason, 0)
        self._num_failed_steps = 0

    def check(self, request: Request) -> None:
        """Raises what is wrong with the request."""
        num_tokens = len(request.prompt)
        if num_tokens == 0:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        if not request.sampling.pools:
            raise InvalidRequestError("the model is an encoder: it makes vectors and scores of texts, and no text")
        if not 0 <= request.second_from < num_tokens:
            raise InvalidRequestError(f"a second text cannot begin at token {request.second_from} of {num_tokens}")
        if num_tokens > self.limits.max_model_len:
            raise InvalidRequestError(
                f"maximum context length is {self.limits.max_model_len} tokens, but the text has {num_tokens}",
                param="prompt",
                code="context_length_exceeded",
            )

    def add(self, request: Request) -> None:
        """Queues the request, or raises why not."""
        self.check(request)
        if request.id in self._known:
            raise InvalidRequestError(f"a request with the id {request.id!r} is already being served", param="id")
        max_waiting = self.limits.max_waiting
        # As many as a step takes do not wait for others.
        num_waiting = bisect_right(self._waiting, request.priority, key=_priority) - self.limits.max_rows
        if max_waiting is not None and num_waiting >= max_waiting:
            raise OverloadedError(
                f"{num_waiting} texts wait already, and at most {max_waiting} may",
                retry_after=self._pace.promise(request.arrival),
            )
        if not self._known:
            self._pace.begins(request.arrival)
        self._known[request.id] = request
        insort(self._waiting, request, key=_rank)

    def cancel(self, request_id: str) -> None:
        """Ends a request; an unknown one is no matter. One last Delta tells, with the next commit or `take_deltas`."""
        request = self._known.pop(request_id, None)
        if request is None:
            return
        self._suspects.discard(request_id)
        place = bisect_left(self._waiting, _rank(request), key=_rank)
        if self._waiting[place : place + 1] == [request]:
            del self._waiting[place]
        self._num_ended[FinishReason.CANCELLED] += 1
        self._deltas.append(Delta(request_id, 0, finish_reason=FinishReason.CANCELLED))

    def take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._deltas or self._in_flight)

    def plan(self, now: float) -> EncodeStep | None:
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight.id} is in flight: commit it before the next is planned")
        chosen = self._choose()
        if not chosen:
            return None
        step = EncodeStep(self._next_step_id, tuple(_text(request) for request in chosen))
        self._next_step_id += 1
        self._in_flight = _InFlight(step.id, tuple(chosen), now)
        return step

    def _choose(self) -> list[Request]:
        """Takes the first in rank from the queue, while they fit. Nobody overtakes the one that does not."""
        if self._suspects:
            place = next(place for place, request in enumerate(self._waiting) if request.id in self._suspects)
            return [self._waiting.pop(place)]
        budget = self.limits.max_batch_tokens
        num_foreground = bisect_left(self._waiting, BACKGROUND_PRIORITY, key=_priority)
        beside = 1 if self.limits.max_background_tokens else 0
        most = num_foreground + beside if num_foreground else len(self._waiting)
        count = 0
        for request in self._waiting[: min(most, self.limits.max_rows)]:
            if len(request.prompt) > budget:
                break
            budget -= len(request.prompt)
            count += 1
        chosen, self._waiting = self._waiting[:count], self._waiting[count:]
        return chosen

    def commit(self, result: EncodeResult, now: float) -> list[Delta]:
        """Takes in what the planned step computed. Returns the news of each request, and of those cancelled since."""
        if self._in_flight is None or result.step_id != self._in_flight.id:
            raise RuntimeError(f"step {result.step_id} has a result, but it is not the one in flight")
        requests, planned = self._in_flight.requests, self._in_flight.planned
        self._in_flight = None
        self._num_prompt_tokens += sum(len(request.prompt) for request in requests)
        self._queue_seconds += sum(planned - request.arrival for request in requests)
        failures = {failure.row: failure for failure in result.failures}
        deltas = self.take_deltas()
        for place, (request, vector) in enumerate(zip(requests, result.vectors, strict=True)):
            if self._known.get(request.id) is not request:
                continue  # cancelled meanwhile
            failure = failures.get(place)
            reason = FinishReason.STOP if failure is None else FinishReason.ERROR
            self._end(request, reason, now)
            if failure is None:
                deltas.append(Delta(request.id, 0, finish_reason=reason, pooled=vector))
            else:
                deltas.append(Delta(request.id, 0, finish_reason=reason, error=failure.message))
        return deltas

    def abandon(self, why: str, now: float) -> list[Delta]:
        """The step in flight failed as a whole. Returns the news of the text that caused it, where that is known: it was
        suspected, and had the step for itself; and of those cancelled since."""
        self._num_failed_steps += 1
        requests = self.recall()
        deltas = self.take_deltas()
        if len(requests) == 1 and requests[0].id in self._suspects:
            (culprit,) = requests
            del self._waiting[bisect_left(self._waiting, _rank(culprit), key=_rank)]
            self._end(culprit, FinishReason.ERROR, now)
            return [*deltas, Delta(culprit.id, 0, finish_reason=FinishReason.ERROR, error=why)]
        self._suspects.update(request.id for request in requests)
        return deltas

    def recall(self) -> list[Request]:
        """The step in flight is computed again: its texts, but those cancelled since, wait once more."""
        if self._in_flight is None:
            raise RuntimeError("no step is in flight")
        requests = [request for request in self._in_flight.requests if self._known.get(request.id) is request]
        self._in_flight = None
        for request in requests:
            insort(self._waiting, request, key=_rank)
        return requests

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        del self._known[request.id]
        self._suspects.discard(request.id)
        self._num_ended[reason] += 1
        self._pace.ended(now, is_awaited=bool(self._waiting))

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._in_flight.requests) if self._in_flight else 0,
            waiting=len(self._waiting),
            free_blocks=0,
            held_blocks=0,
            cached_blocks=0,
            preemptions=0,
            evicted_blocks=0,
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=0,
            generated_tokens=0,
            queue_seconds=self._queue_seconds,
            ended_by_stop=self._num_ended[FinishReason.STOP],
            ended_by_length=0,
            cancelled=self._num_ended[FinishReason.CANCELLED],
            failed=self._num_ended[FinishReason.ERROR],
            planned_ahead=0,
            discarded=0,
            held_back={},
            failed_steps=self._num_failed_steps,
            suspects=len(self._suspects),
        )


def _text(request: Request) -> EncodeText:
    return EncodeText(request.prompt, request.second_from or len(request.prompt))


def _priority(request: Request) -> int:
    return request.priority


def _rank(request: Request) -> tuple[int, float, str]:
    return request.priority, request.arrival, request.id
