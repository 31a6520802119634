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
from trivium.types.account import Account
from trivium.types.delta import Delta, FinishReason
from trivium.types.encode import EncodeResult, EncodeStep, EncodeText
from trivium.types.errors import ConfigError, InvalidRequestError, OverloadedError
from trivium.types.request import BACKGROUND_PRIORITY, Request


@dataclass(frozen=True)
class _Taken:
    """A request that waits or is computed."""

    request: Request
    taken: float  # when the engine's loop took it in
    num_ahead: int  # texts that waited before it then

    def account(self, planned: float, now: float, engine_seconds: float = 0.0) -> Account:
        """`planned`: when the step that computes it began, or now where none has."""
        return Account(
            self.request.arrival,
            now,
            handover=self.taken - self.request.arrival,
            queued=planned - self.taken,
            prompt=now - planned,
            num_ahead=self.num_ahead,
            num_chunks=int(planned < now),
            num_prompt_tokens=len(self.request.prompt),
            engine_seconds=engine_seconds,
        )


@dataclass(frozen=True)
class _InFlight:
    id: int
    planned: float  # when
    texts: tuple[_Taken, ...]


class EncoderScheduler:
    def __init__(self, limits: SchedulerLimits) -> None:
        if limits.max_batch_tokens < limits.max_model_len:
            raise ConfigError(
                f"a step computes {limits.max_batch_tokens} tokens, and a text of {limits.max_model_len} must fit in one"
            )
        self.limits = limits
        self._waiting: list[_Taken] = []  # in order of rank
        self._known: dict[str, _Taken] = {}  # waiting or in flight, by id
        self._in_flight: _InFlight | None = None
        self._suspects: set[str] = set()  # ids of texts whose step has failed
        self._deltas: list[Delta] = []  # of cancels, not yet told
        self._next_step_id = 0
        self._pace = Pace()
        self._now = 0.0  # the latest that was heard of
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

    def add(self, request: Request, now: float | None = None) -> None:
        """Queues the request, or raises why not.

        Here and in `cancel`, without `now` it is as late as it was in the last plan or commit.
        """
        self._now = max(self._now, request.arrival) if now is None else now
        self.check(request)
        if request.id in self._known:
            raise InvalidRequestError(f"a request with the id {request.id!r} is already being served", param="id")
        max_waiting = self.limits.max_waiting
        # As many as a step takes do not wait for others.
        num_ahead = bisect_right(self._waiting, request.priority, key=_priority)
        num_waiting = num_ahead - self.limits.max_rows
        if max_waiting is not None and num_waiting >= max_waiting:
            raise OverloadedError(
                f"{num_waiting} texts wait already, and at most {max_waiting} may",
                retry_after=self._pace.promise(request.arrival),
            )
        if not self._known:
            self._pace.begins(request.arrival)
        taken = self._known[request.id] = _Taken(request, self._now, num_ahead)
        insort(self._waiting, taken, key=_rank)

    def cancel(self, request_id: str, now: float | None = None) -> None:
        """Ends a request; an unknown one is no matter. One last Delta tells, with the next commit or `take_deltas`."""
        text = self._known.pop(request_id, None)
        if text is None:
            return
        self._suspects.discard(request_id)
        self._now = self._now if now is None else now
        step = self._in_flight
        planned = step.planned if step is not None and text in step.texts else self._now
        place = bisect_left(self._waiting, _rank(text), key=_rank)
        if self._waiting[place : place + 1] == [text]:
            del self._waiting[place]
        self._num_ended[FinishReason.CANCELLED] += 1
        account = text.account(planned, self._now)
        self._deltas.append(Delta(request_id, 0, finish_reason=FinishReason.CANCELLED, account=account))

    def take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._deltas or self._in_flight)

    def plan(self, now: float) -> EncodeStep | None:
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight.id} is in flight: commit it before the next is planned")
        self._now = now
        chosen = self._choose()
        if not chosen:
            return None
        step = EncodeStep(self._next_step_id, tuple(_text(text.request) for text in chosen))
        self._next_step_id += 1
        self._in_flight = _InFlight(step.id, now, tuple(chosen))
        return step

    def _choose(self) -> list[_Taken]:
        """Takes the first in rank from the queue, while they fit. Nobody overtakes the one that does not."""
        if self._suspects:
            place = next(place for place, text in enumerate(self._waiting) if text.request.id in self._suspects)
            return [self._waiting.pop(place)]
        budget = self.limits.max_batch_tokens
        num_foreground = bisect_left(self._waiting, BACKGROUND_PRIORITY, key=_priority)
        beside = 1 if self.limits.max_background_tokens else 0
        most = num_foreground + beside if num_foreground else len(self._waiting)
        count = 0
        for text in self._waiting[: min(most, self.limits.max_rows)]:
            if len(text.request.prompt) > budget:
                break
            budget -= len(text.request.prompt)
            count += 1
        chosen, self._waiting = self._waiting[:count], self._waiting[count:]
        return chosen

    def commit(self, result: EncodeResult, now: float) -> list[Delta]:
        """Takes in what the planned step computed. Returns the news of each request, and of those cancelled since."""
        if self._in_flight is None or result.step_id != self._in_flight.id:
            raise RuntimeError(f"step {result.step_id} has a result, but it is not the one in flight")
        step, self._in_flight = self._in_flight, None
        self._now = now
        num_tokens = sum(len(text.request.prompt) for text in step.texts)
        self._num_prompt_tokens += num_tokens
        self._queue_seconds += sum(step.planned - text.request.arrival for text in step.texts)
        per_token = (now - step.planned) / num_tokens
        failures = {failure.row: failure for failure in result.failures}
        deltas = self.take_deltas()
        for place, (text, vector) in enumerate(zip(step.texts, result.vectors, strict=True)):
            request = text.request
            if self._known.get(request.id) is not text:
                continue  # cancelled meanwhile
            account = text.account(step.planned, now, per_token * len(request.prompt))
            failure = failures.get(place)
            reason = FinishReason.STOP if failure is None else FinishReason.ERROR
            self._end(request, reason, now)
            if failure is None:
                deltas.append(Delta(request.id, 0, finish_reason=reason, pooled=vector, account=account))
            else:
                deltas.append(Delta(request.id, 0, finish_reason=reason, error=failure.message, account=account))
        return deltas

    def abandon(self, why: str, now: float) -> list[Delta]:
        """The step in flight failed as a whole. Returns the news of the text that caused it, where that is known: it was
        suspected, and had the step for itself; and of those cancelled since."""
        self._num_failed_steps += 1
        self._now = now
        texts = self.recall()
        deltas = self.take_deltas()
        if len(texts) == 1 and (culprit := texts[0].request.id) in self._suspects:
            del self._waiting[bisect_left(self._waiting, _rank(texts[0]), key=_rank)]
            self._end(texts[0].request, FinishReason.ERROR, now)
            account = texts[0].account(now, now)
            return [*deltas, Delta(culprit, 0, finish_reason=FinishReason.ERROR, error=why, account=account)]
        self._suspects.update(text.request.id for text in texts)
        return deltas

    def recall(self) -> list[_Taken]:
        """The step in flight is computed again: its texts, but those cancelled since, wait once more."""
        if self._in_flight is None:
            raise RuntimeError("no step is in flight")
        texts = [text for text in self._in_flight.texts if self._known.get(text.request.id) is text]
        self._in_flight = None
        for text in texts:
            insort(self._waiting, text, key=_rank)
        return texts

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        del self._known[request.id]
        self._suspects.discard(request.id)
        self._num_ended[reason] += 1
        self._pace.ended(now, is_awaited=bool(self._waiting))

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._in_flight.texts) if self._in_flight else 0,
            waiting=len(self._waiting),
            free_blocks=0,
            held_blocks=0,
            cached_blocks=0,
            preemptions=0,
            evicted_blocks=0,
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=0,
            computed_prompt_tokens=self._num_prompt_tokens,
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


def _priority(text: _Taken) -> int:
    return text.request.priority


def _rank(text: _Taken) -> tuple[int, float, str]:
    request = text.request
    return request.priority, request.arrival, request.id
