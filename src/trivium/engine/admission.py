"""Who is let through to the engine. The engine reads its messages between steps, and steps may be long; so what is too much is
refused on this side of the line, at once, from what is known here: who is under way, and how fast the engine has been.

A request is looked at twice: when it knocks, before any work goes into it, and when its prompt is known. What is done as the
queue fills is graded (types/overload.py); when the refused may come back, and that they then get in, is the matter of
engine/appointments.py.
"""

from __future__ import annotations

from collections import Counter

from trivium.engine.appointments import Appointments
from trivium.schedule.pace import SECONDS_WHEN_UNKNOWN, Pace
from trivium.types.errors import OverloadedError
from trivium.types.overload import AdmissionStats, Grade, PutOff
from trivium.types.request import BACKGROUND_PRIORITY, Request

LONG_PROMPT_TOKENS = 2048  # a prompt beyond it holds up the first tokens of all who come after it
MOST_SECONDS_OF_BATCHES = 10.0  # before they look again
NEWCOMERS_SHARE = 8  # one in so many places is never kept from newcomers, so that rows have work whoever comes


class Place:
    """In the queue, held for a request from its knock until it is sent to the engine, or is over."""

    def __init__(self, admission: Admission, priority: int, visitor: int | None, *, is_invited: bool) -> None:
        self._admission = admission
        self._priority = priority
        self._is_held = True
        self.visitor = visitor
        self.is_invited = is_invited  # it was told to come now

    def leave(self) -> bool:
        """Whether it was held until now."""
        was_held, self._is_held = self._is_held, False
        if was_held:
            self._admission.forget(self._priority, 1)
        return was_held


class Admission:
    """Of one engine process. Times are seconds of CLOCK_MONOTONIC."""

    def __init__(self, max_rows: int, max_waiting: int, max_first_token_seconds: float | None) -> None:
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._max_first_token_seconds = max_first_token_seconds
        self._pace = Pace(num_remembered=2 * max_rows)
        self._appointments = Appointments()
        self._prompt_token_seconds = 0.0  # of the engine's steps, for each token of prompts; 0: not known yet
        self._sequences: Counter[int] = Counter()  # under way, and places held, by priority
        self._prompts: dict[str, tuple[int, int]] = {}  # priority and tokens of prompts whose first token has not come
        self._put_off = Counter(dict.fromkeys(PutOff, 0))

    # Coming in

    def knock(self, priority: int, visitor: int | None, now: float) -> Place:
        """Before anything is known of a request but who asks. Raises OverloadedError where it would be refused whatever its
        prompt is. `visitor`: a number that tells those who come again."""
        if priority >= BACKGROUND_PRIORITY:
            self._check_batch()
            visitor = None
        is_invited = visitor is not None and self._appointments.is_due(visitor, now)
        if is_invited and visitor is not None:
            self._appointments.keep(visitor)
        self._check_queue(priority, visitor, now, is_invited=is_invited)
        self._check_first_token(priority, 0, visitor, now)
        self._add(priority, 1, now)
        return Place(self, priority, visitor, is_invited=is_invited)

    def check(self, request: Request, now: float, place: Place | None = None) -> None:
        """Raises OverloadedError with the numbers and when to come back. Its place, if it holds one, is given back: it is
        sent next. Who never knocked is a program with the engine to itself, and has as many places as there are."""
        priority = request.priority
        visitor = None if place is None else place.visitor
        is_invited = place is not None and place.is_invited
        if place is None or not place.leave():
            self._check_queue(priority, visitor, now, is_invited=is_invited)
        if place is not None and not is_invited:
            self._check_size(request, visitor, now)
        self._check_first_token(priority, len(request.prompt), visitor, now)

    def _check_queue(self, priority: int, visitor: int | None, now: float, *, is_invited: bool) -> None:
        num_waiting = self._num_waiting(priority)
        if num_waiting >= self._max_waiting:
            self._refuse(
                PutOff.QUEUE,
                f"{max(num_waiting, 0)} sequences wait for a row already, and at most {self._max_waiting} may",
                visitor,
                now,
            )
        if not is_invited and priority < BACKGROUND_PRIORITY and num_waiting >= self._num_for_newcomers(now):
            kept = self._max_waiting - num_waiting
            self._refuse(
                PutOff.NEWCOMER,
                f"{num_waiting} sequences wait for a row, and the {kept} places left are kept for those who were told to come now",
                visitor,
                now,
            )

    def _check_batch(self) -> None:
        """Batches have no appointments: they look again after a while, and go on as soon as nobody else waits."""
        if (num_online := self._num_waiting(BACKGROUND_PRIORITY - 1)) > 0:
            self._put_off[PutOff.BATCH] += 1
            raise OverloadedError(
                f"{num_online} sequences wait for a row, and batches go after them",
                retry_after=min(self._wave_seconds, MOST_SECONDS_OF_BATCHES),
            )

    def _num_for_newcomers(self, now: float) -> int:
        """Places less those of whoever is expected before the queue as it may be now has been served."""
        expected = self._appointments.num_expected(now, self._max_waiting * self._pace.between_ends)
        always = min(self._max_waiting, max(1, self._max_waiting // NEWCOMERS_SHARE))
        return max(self._max_waiting - int(expected), always)

    def _check_size(self, request: Request, visitor: int | None, now: float) -> None:
        if not self._is_crowded(num_waiting := self._num_waiting(request.priority)):
            return
        taken = f"{num_waiting} of {self._max_waiting} places in the queue are taken"
        if request.n > 1:
            self._refuse(PutOff.SEVERAL_ANSWERS, f"{taken}, and {request.n} answers at once must wait", visitor, now)
        if (num_tokens := len(request.prompt)) > LONG_PROMPT_TOKENS:
            self._refuse(
                PutOff.LONG_PROMPT,
                f"{taken}, and a prompt of {num_tokens} tokens, more than {LONG_PROMPT_TOKENS}, must wait",
                visitor,
                now,
            )

    def _is_crowded(self, num_waiting: int) -> bool:
        return 0 < self._max_waiting <= 2 * num_waiting

    def _check_first_token(self, priority: int, num_tokens: int, visitor: int | None, now: float) -> None:
        limit = self._max_first_token_seconds
        if limit is None:
            return
        expected = self.first_token_seconds(priority, num_tokens)
        if expected > limit:
            self._refuse(
                PutOff.FIRST_TOKEN,
                f"the first token is expected in {expected:.1f} s, and more than {limit:g} s are not promised here",
                visitor,
                now,
                at_least=expected - limit,
            )

    def first_token_seconds(self, priority: int, num_tokens: int) -> float:
        """When the first token after a prompt of so many may be expected: after all prompts before it and its own, and after
        so many ends that it has a row. What the prefix cache will spare is not known here, nor what comes before it later."""
        tokens = sum(tokens for other, tokens in self._prompts.values() if other <= priority) + num_tokens
        num_ends = max(0, self._num_waiting(priority) + 1)
        return tokens * self._prompt_token_seconds + num_ends * self._pace.between_ends

    def _refuse(self, reason: PutOff, message: str, visitor: int | None, now: float, at_least: float = 0.0) -> None:
        self._put_off[reason] += 1
        raise OverloadedError(message, retry_after=max(self._retry_after(visitor, now, at_least), at_least))

    def _retry_after(self, visitor: int | None, now: float, at_least: float) -> float:
        if not self._pace.is_known:
            return SECONDS_WHEN_UNKNOWN  # by then more is known: nobody is sent away for long on a guess
        # The first who come back find what one wave left.
        return self._appointments.give(visitor, now, self._pace.between_ends, max(self._wave_seconds, at_least))

    @property
    def _wave_seconds(self) -> float:
        """Ends come in waves where answers are of one length: from one to the next, as far as the queue can tell."""
        return max(min(self._max_rows, self._max_waiting), 1) * self._pace.between_ends

    # Under way

    def sent(self, request: Request) -> None:
        self._add(request.priority, request.n, request.arrival)
        self._prompts[request.id] = request.priority, len(request.prompt)

    def began(self, request: Request) -> None:
        """Its first token came."""
        self._prompts.pop(request.id, None)

    def sequence_ended(self, request: Request, now: float) -> None:
        self.began(request)
        self._pace.ended(now, is_awaited=self._sequences.total() > self._max_rows)
        self.forget(request.priority, 1)

    def gone(self, request: Request, num_left: int) -> None:
        """The request is over, with so many sequences that never ended of themselves."""
        self.began(request)
        self.forget(request.priority, num_left)

    def hear(self, prompt_token_seconds: float) -> None:
        self._prompt_token_seconds = prompt_token_seconds

    def _add(self, priority: int, count: int, now: float) -> None:
        if not self._sequences:
            self._pace.begins(now)
        self._sequences[priority] += count

    def forget(self, priority: int, count: int) -> None:
        self._sequences[priority] -= count
        if self._sequences[priority] <= 0:
            del self._sequences[priority]

    # What can be seen

    def stats(self, now: float) -> AdmissionStats:
        return AdmissionStats(
            grade=self.grade(now),
            waiting=max(self._num_waiting(BACKGROUND_PRIORITY - 1), 0),
            max_waiting=self._max_waiting,
            appointments=len(self._appointments),
            kept=self._appointments.num_kept,
            missed=self._appointments.num_missed,
            put_off=dict(self._put_off),
        )

    def grade(self, now: float) -> Grade:
        """For those who are no batch."""
        num_waiting = self._num_waiting(BACKGROUND_PRIORITY - 1)
        if num_waiting >= self._max_waiting:
            return Grade.SHUT
        if num_waiting >= self._num_for_newcomers(now):
            return Grade.FULL
        if self._is_crowded(num_waiting):
            return Grade.CROWDED
        return Grade.BUSY if num_waiting > 0 else Grade.OPEN

    def _num_waiting(self, priority: int) -> int:
        """For a row, of those who go before a newcomer of this priority; below 0: rows are free."""
        return sum(count for other, count in self._sequences.items() if other <= priority) - self._max_rows
