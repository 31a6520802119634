"""Who runs next. Continuous batching without phases: in each sequence `num_computed` chases `len(tokens)`.

    step = scheduler.plan(now)                   # None: nothing to do
    deltas = scheduler.commit(run(step), now)    # what the step brought

A step gives rows that lack one token theirs first; then, priority by priority, chunks to running rows that lack more
and places to waiting sequences; all in order of rank (priority, arrival, id, index) and within the limits. Background
sequences come after all that, with a small budget of their own while there are others. When blocks run out, the running
sequence of the lowest rank gives its up and waits again; its full blocks stay cached, so it resumes cheaply, and
exactly: what it generated is now part of what it computes. The first in rank is never made to give way by another,
and `check` refuses what could not run alone; so somebody always progresses and every admitted request ends.

`plan` may be called once more before the commit, so that the device finds its next step waiting. A sequence whose last token
is still being drawn is then given the position of that token on the promise that it comes: the device's row knows it.
If the sequence turns out to have ended, what was computed for it is dropped. Steps run and are committed in the order of
their planning. Rows and blocks come back when no step in flight has the row; nobody is preempted while a step is in
flight: `plan` then gives nothing until all are committed.

A step that fails as a whole is given up with all that are in flight (`abandon`): nothing of them counts, and who had a part
in them is suspected, also where it was only one. Suspects run one at a time, each alone, until they draw a token; the one
whose step then fails again was the cause and ends with an error. The others have lost nothing but time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice

from trivium.cache.block_cache import BlockCache
from trivium.cache.ledger import audit
from trivium.cache.outline import outline
from trivium.cache.pool import LedgerError
from trivium.schedule.draft import StepDraft
from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.odometer import Odometer
from trivium.schedule.open_account import OpenAccount, Phase
from trivium.schedule.pace import Pace
from trivium.schedule.sequence import NO_ROW, Family, Sequence, State
from trivium.schedule.snapshot import MAX_BLOCKS, MAX_CHAINS, MAX_SEQUENCES, SequenceView, Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types.account import Account
from trivium.types.delta import Delta, FinishReason
from trivium.types.errors import InvalidRequestError, NeverFitsError, OverloadedError
from trivium.types.kv import KVSpec, blocks_needed
from trivium.types.request import BACKGROUND_PRIORITY, Request
from trivium.types.step import PromptLogprobs, RowFailure, RowWork, SampledRow, Step, StepResult, TokenLogprobs

__all__ = ["Scheduler", "SchedulerStats"]


class Scheduler:
    def __init__(
        self,
        limits: SchedulerLimits,
        spec: KVSpec,
        num_blocks: int,
        needs_host: Callable[[Request], str | None] = lambda request: None,
    ) -> None:
        """`needs_host` says why a request's next position cannot be planned before its last token is known."""
        self.limits = limits
        self._needs_host = needs_host
        self._cache = BlockCache(spec, num_blocks, limits.prefix_caching, limits.easy_blocks)
        self._longest = _longest_sequence(limits.max_model_len, spec, num_blocks)
        self._families: dict[str, Family] = {}
        self._running: list[Sequence] = []  # in order of rank
        self._waiting: list[Sequence] = []  # in order of queue_key
        self._rows: list[Sequence | None] = [None] * limits.max_rows
        self._free_rows = list(range(limits.max_rows))  # a heap: low rows are used first, so batches stay compact
        self._ended_rows: list[int] = []  # the device is to be told
        self._next_step_id = 0
        self._in_flight: dict[int, dict[int, RowWork]] = {}  # by step, oldest first; work by row
        self._planned: dict[int, float] = {}  # by step in flight: when
        self._late: dict[int, Sequence] = {}  # by row: whose token the step that computed it did not bring
        self._must_settle = False  # somebody is to be preempted: nothing more is planned while a step is in flight
        self._preempt_when_settled: set[str] = set()
        self._suspects: list[Sequence] = []  # in order of rank; the first is the only one that runs
        # They read what a failed row wrote: what steps in flight bring them is void.
        self._misled: set[Sequence] = set()
        self._deltas: list[Delta] = []  # of cancels, not yet told
        self._pace = Pace()
        self._odometer = Odometer()
        self._now = 0.0  # the latest that was heard of
        self._why_waiting = ""  # what the first in the queue wanted in vain, in the last plan that left one there
        self._left_waiting = 0.0  # when that was
        self._num_preemptions = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_computed_prompt_tokens = 0
        self._num_left_prompt_tokens = 0
        self._num_recomputed_tokens = 0
        self._num_copied_blocks = 0
        self._num_generated_tokens = 0
        self._queue_seconds = 0.0
        self._num_ended = dict.fromkeys(FinishReason, 0)
        self._num_planned_ahead = 0
        self._num_discarded = 0
        self._num_failed_steps = 0
        self._num_held_back: Counter[str] = Counter()

    # Requests come and go

    def check(self, request: Request) -> None:
        """Raises what is wrong with the request, or the three numbers why it can never fit."""
        num_prompt, num_new = len(request.prompt), request.stopping.max_tokens
        if num_prompt == 0:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        if num_new < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, not {num_new}", param="max_tokens")
        if request.n < 1:
            raise InvalidRequestError(f"n must be at least 1, not {request.n}", param="n")
        if num_prompt + num_new > self._longest:
            raise NeverFitsError(num_prompt, num_new, self._longest)

    def add(self, request: Request, now: float | None = None, grammar_seconds: float = 0.0) -> None:
        """Queues the request, or raises why not. `grammar_seconds`: how long it has waited for its grammar before.

        Here and in `cancel`, without `now` it is as late as it was in the last plan or commit.
        """
        self._now = self._now if now is None else now
        self.check(request)
        if request.id in self._families:
            raise InvalidRequestError(f"a request with the id {request.id!r} is already being served", param="id")
        max_waiting = self.limits.max_waiting
        num_waiting = self._num_waiting_before(request.priority)
        if max_waiting is not None and num_waiting >= max_waiting:
            raise OverloadedError(
                f"{num_waiting} sequences wait for a row already, and at most {max_waiting} may",
                retry_after=self._pace.promise(self._now),
            )
        if not self._running and not self._waiting:
            self._pace.begins(max(self._now, request.arrival))
        num_ahead = bisect_right(self._waiting, request.priority, key=_priority)

        def open_account() -> OpenAccount:
            arrival, num_prompt = request.arrival, len(request.prompt)
            return OpenAccount(self._odometer, arrival, self._now, num_ahead, num_prompt, grammar_seconds)

        family = Family(request, self._cache, self.limits.max_model_len, self._needs_host(request), open_account)
        self._families[request.id] = family
        for sequence in family.sequences:
            self._enqueue(sequence)

    def _num_waiting_before(self, priority: int) -> int:
        """Sequences of this priority or a better one that will not find a row: who must give way does not count."""
        num_giving_way = len(self._running) - bisect_right(self._running, priority, key=_priority)
        return bisect_right(self._waiting, priority, key=_priority) - len(self._free_rows) - num_giving_way

    def cancel(self, request_id: str, index: int | None = None, now: float | None = None) -> None:
        """Ends a request, or one of its sequences; an unknown one is no matter.

        Nothing more is said of it but one last Delta, with the next commit or `take_deltas`. Its blocks are free at
        once, or at the commit of the last step that is computing it.
        """
        family = self._families.get(request_id)
        if family is None:
            return
        self._now = self._now if now is None else now
        for sequence in [s for s in family.sequences if index is None or s.index == index]:
            account = self._end(sequence, FinishReason.CANCELLED)
            cancelled = Delta(request_id, sequence.index, finish_reason=FinishReason.CANCELLED, account=account)
            self._deltas.append(cancelled)

    def preempt(self, request_id: str) -> None:
        """Makes the request's running sequences give up their rows and blocks; they resume when there is room.

        At once, or when the steps in flight are committed.
        """
        if self._in_flight:
            self._preempt_when_settled.add(request_id)
            self._must_settle = True
            return
        family = self._families.get(request_id)
        for sequence in family.sequences if family else ():
            if sequence.state is State.RUNNING:
                self._preempt(sequence, by="")

    def take_deltas(self) -> list[Delta]:
        """Last words of cancelled sequences, for when there is no step whose commit would bring them."""
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that may be asked for."""
        return self._longest

    @property
    def has_work(self) -> bool:
        """Whether a plan, a commit or `take_deltas` would bring anything."""
        return bool(self._running or self._waiting or self._ended_rows or self._deltas or self._in_flight)

    # One plan out

    def plan(self, now: float) -> Step | None:
        """The next step; None if there is nothing to compute and no row to end, or not before the next commit.

        A step may only end rows.
        """
        if len(self._in_flight) > 1:
            raise RuntimeError(f"steps {[*self._in_flight]} are in flight: commit the first before a third is planned")
        if self._in_flight and self._must_settle:
            return None
        self._must_settle = False
        self._now = now
        draft = StepDraft(self.limits.max_batch_tokens)
        if self._suspects:
            if not self._in_flight:
                self._plan_alone(self._suspects[0], draft)
            return self._finish(draft)
        if self._has(is_background=False):
            self._plan_class(draft, now, is_background=False)
            draft.budget = min(draft.budget, self.limits.max_background_tokens)
        if self._has(is_background=True):
            self._plan_class(draft, now, is_background=True)
        return self._finish(draft)

    def _finish(self, draft: StepDraft) -> Step | None:
        if not draft.work and (self._in_flight or not (self._ended_rows or self._late)):
            return None
        step = draft.finish(self._next_step_id, tuple(self._ended_rows))
        self._ended_rows.clear()
        self._next_step_id += 1
        self._num_copied_blocks += len(step.copies)
        self._in_flight[step.id] = draft.work
        self._planned[step.id] = self._now
        return step

    def _plan_alone(self, sequence: Sequence, draft: StepDraft) -> None:
        """Nobody else runs; for want of room the others give theirs up."""
        if sequence.state is State.WAITING:
            while not self._fits(sequence, draft):
                self._preempt(self._running[-1], sequence.request.id, draft)
            del self._waiting[bisect_left(self._waiting, sequence.queue_key, key=_queue_key)]
            self._start(sequence, draft, self._now)
        elif not sequence.num_awaited:  # else its token is late
            while sequence.tables.furthest(sequence.num_planned, sequence.num_planned + 1) == sequence.num_planned:
                self._preempt(next(s for s in reversed(self._running) if s is not sequence), sequence.request.id, draft)
            self._plan_with_preemption(sequence, self._chunk(sequence, draft), draft)

    def _has(self, *, is_background: bool) -> bool:
        """Whether there are sequences of this class. Background is behind the others in both lists."""
        place = -1 if is_background else 0
        running, waiting = self._running, self._waiting
        return bool(running and running[place].is_background is is_background) or bool(
            waiting and waiting[place].is_background is is_background
        )

    def _plan_class(self, draft: StepDraft, now: float, *, is_background: bool) -> None:
        lacking_more = self._plan_single_tokens(draft, is_background)
        self._plan_chunks(lacking_more, draft, now)
        self._admit(draft, now, before=None if is_background else BACKGROUND_PRIORITY)

    def _plan_single_tokens(self, draft: StepDraft, is_background: bool) -> list[Sequence]:
        """Rows that lack one token get theirs. Returns those that lack more."""
        lacking_more = []
        running = self._running
        num_foreground = len(running)
        if running and running[-1].is_background:
            num_foreground = bisect_left(running, BACKGROUND_PRIORITY, key=_priority)
        places = (num_foreground, None) if is_background else (0, num_foreground)
        for sequence in islice(running, *places):  # which loses its last when someone is preempted
            position, num_awaited = sequence.num_planned, sequence.num_awaited
            num_missing = len(sequence.tokens) + num_awaited - position
            if num_missing > 1:
                lacking_more.append(sequence)
                continue
            if not num_missing or not draft.budget or (num_awaited and not self._may_run_ahead(sequence)):
                continue
            if position < sequence.tables.writable_end:
                draft.add(sequence, 1)
            else:
                self._plan_with_preemption(sequence, 1, draft)
        return lacking_more

    def _may_run_ahead(self, sequence: Sequence) -> bool:
        """Whether the position of a token that is still being drawn is of use, and may be planned."""
        if len(sequence.tokens) + sequence.num_awaited >= sequence.max_len:
            return False  # that token is its last
        if sequence.needs_host is not None:
            self._num_held_back[sequence.needs_host] += 1
            return False
        self._num_planned_ahead += 1
        return True

    def _plan_chunks(self, lacking_more: list[Sequence], draft: StepDraft, now: float) -> None:
        """By priority; within one, running sequences go before waiting ones, which are admitted after them."""
        for sequence in lacking_more:
            self._admit(draft, now, before=sequence.request.priority)
            if sequence.state is State.RUNNING and draft.budget:
                self._plan_with_preemption(sequence, self._chunk(sequence, draft), draft)
                self._offer(sequence, draft)

    def _plan_with_preemption(self, sequence: Sequence, count: int, draft: StepDraft) -> None:
        """Up to `count` tokens, as many as there are blocks for. If for none, the last in rank gives its blocks up."""
        start, tables = sequence.num_planned, sequence.tables
        while (end := tables.furthest(start, start + count)) == start:
            if self._in_flight:
                self._must_settle = True
                return
            victim = self._running[-1]
            self._preempt(victim, sequence.request.id, draft)
            if victim is sequence:
                return
        draft.add(sequence, end - start, tables.reserve(start, end))

    def _offer(self, sequence: Sequence, draft: StepDraft) -> None:
        """Who is admitted from now on may share what the sequence computes in this step.

        It is not preempted after that while the step is planned: those are whose turn is still to come, those of a lower
        priority than someone admitted, whose turn is later too, and rows that lack one token, which offer nothing.
        """
        work = draft.work.get(sequence.row)
        if work is not None and work.start + work.count >= sequence.tables.next_full:
            sequence.tables.offer(sequence.tokens, work.start + work.count)

    def _chunk(self, sequence: Sequence, draft: StepDraft) -> int:
        count = min(sequence.num_missing, draft.budget)
        return count if self.limits.max_chunk_tokens is None else min(count, self.limits.max_chunk_tokens)

    def _admit(self, draft: StepDraft, now: float, before: int | None = None) -> None:
        """Starts waiting sequences (of priorities before this one) until one does not fit.

        Nobody overtakes the one that does not: its turn comes.
        """
        waiting = self._waiting
        i = 0
        while not self._must_settle and i < len(waiting) and (before is None or waiting[i].request.priority < before):
            sequence = waiting[i]
            if sequence.family.prefilling is not None and sequence.may_reuse_prompt:
                i += 1  # its family's prompt is being computed: it will share that
            elif self._fits(sequence, draft) or self._fits_after_preemption(sequence, draft):
                del waiting[i]
                self._start(sequence, draft, now)
            else:
                self._why_waiting, self._left_waiting = self._what_is_wanting(draft), now
                return

    def _what_is_wanting(self, draft: StepDraft) -> str:
        if not self._free_rows:
            return "a free row"
        return "free KV blocks" if draft.budget else "tokens of the step's budget"

    def _fits_after_preemption(self, sequence: Sequence, draft: StepDraft) -> bool:
        """A waiting sequence displaces running ones of lower priority, but not merely for their share of this step."""
        if self._free_rows and not draft.budget:
            return False
        while self._running and self._running[-1].request.priority > sequence.request.priority:
            if self._in_flight:
                self._must_settle = True
                return False
            self._preempt(self._running[-1], sequence.request.id, draft)
            if self._fits(sequence, draft):
                return True
        return False

    def _fits(self, sequence: Sequence, draft: StepDraft) -> bool:
        """Gives the sequence what it can reuse, if there are a row, a token and blocks for all its tokens so far.

        What rows in mid-prompt still need counts as taken: to admit more than that would only make them preempt it.
        """
        if not self._free_rows or not draft.budget:
            return False
        tables = sequence.tables
        source = sequence.family.fork_source(draft.started) if sequence.may_reuse_prompt else None
        if source is not None:
            tables.fork(source.tables, sequence.num_prompt)
            start = sequence.num_prompt - 1
        else:
            start = tables.adopt(sequence.request.salt, sequence.reusable_tokens)
        num_needed = draft.num_promised_blocks + tables.num_more_blocks(len(sequence.tokens))
        if num_needed <= self._cache.pool.num_available and tables.furthest(start, start + 1) > start:
            sequence.num_computed = sequence.num_planned = start
            return True
        tables.release()
        return False

    def _start(self, sequence: Sequence, draft: StepDraft, now: float) -> None:
        sequence.state = State.RUNNING
        sequence.row = heapq.heappop(self._free_rows)
        self._rows[sequence.row] = sequence
        insort(self._running, sequence, key=_rank)
        sequence.has_begun = True
        sequence.account.start(now, self._why_waiting if sequence.account.since <= self._left_waiting else "")
        family = sequence.family
        if sequence.num_prompt - sequence.num_computed > self._cache.spec.block_size:
            family.prefilling = sequence
        if family.num_cached_tokens is None:
            family.num_cached_tokens = sequence.num_computed
            self._num_prompt_tokens += sequence.num_prompt
            self._queue_seconds += now - sequence.request.arrival
            sequence.account.found(sequence.num_computed, self._why_missed(sequence))
        num_found = min(sequence.num_computed, sequence.num_prompt)
        self._num_cached_tokens += max(num_found - family.num_covered, 0)
        family.num_covered = max(num_found, family.num_covered)
        draft.start(sequence)
        start = sequence.num_computed
        end = sequence.tables.furthest(start, start + self._chunk(sequence, draft))
        draft.add(sequence, end - start, sequence.tables.reserve(start, end))
        self._offer(sequence, draft)

    def _why_missed(self, sequence: Sequence) -> str:
        """Why no more of the prompt was found."""
        if sequence.num_prompt_logprobs_told < sequence.num_prompt:
            return "its log probabilities were asked for"
        return sequence.tables.why_missed(sequence.tokens)

    # One result in

    def commit(self, result: StepResult, now: float) -> list[Delta]:
        """Takes in what the planned step computed. Returns the news of each sequence, and of those cancelled since."""
        if result.step_id != (oldest := next(iter(self._in_flight), None)):
            raise RuntimeError(f"step {result.step_id} has a result, but the next to be committed is {oldest}")
        work = self._in_flight.pop(result.step_id)
        sampled = {row.row: row for row in result.sampled}
        prompt_logprobs = {row.row: row for row in result.prompt_logprobs}
        failures = {row.row: row for row in result.failures}
        deltas = self.take_deltas()
        self._now = now
        num_tokens = sum(item.count for item in work.values())
        planned = self._planned.pop(result.step_id)
        step_seconds = self._odometer.turn(planned, now, len(work), num_tokens, replayed=result.replayed)
        for absent in [sequence for sequence in self._running if sequence.row not in work]:
            absent.account.sit_out()
        if failures:
            self._withdraw(work, failures)
        for row, item in work.items():
            sequence = self._rows[row]
            assert sequence is not None
            if sequence.state is State.ENDED:
                self._discard(sequence, item)
                continue
            if sequence in self._misled:
                continue
            failure = failures.get(row) if failures else None
            is_late = item.samples and row in result.late
            if failure is None:
                self._advance(sequence, item.start + item.count)
                if sequence.account.phase is Phase.CATCHING_UP:
                    self._count_chunk(sequence.family, item)
                    share = item.count / num_tokens
                    sequence.account.chunk(now, step_seconds, share, caught_up=item.samples)
                if is_late:
                    self._late[row] = sequence
                    sequence.account.late(now)
                else:
                    sequence.num_awaited -= item.samples
            drawn = sampled.get(row)
            if failure is None and item.samples and not is_late and (drawn is None or len(drawn.tokens) != 1):
                failure = _broken_promise(sequence, drawn)
            if failure is not None:
                deltas.append(self._fail(sequence, failure))
                continue
            told = self._prompt_logprobs(sequence, prompt_logprobs.get(row)) if prompt_logprobs else ()
            if item.samples and drawn:
                deltas.append(self._append(sequence, drawn, told, now))
            elif told:
                deltas.append(Delta(sequence.request.id, sequence.index, prompt_logprobs=told))
        deltas += self._take_late(work, sampled, failures, now)
        if not self._in_flight:
            self._settle()
        self._cache.pool.assert_conserved()
        return deltas

    def _count_chunk(self, family: Family, item: RowWork) -> None:
        """Each token of a prompt is computed once, or found, or left; what is computed beyond that is so again."""
        end = min(item.start + item.count, len(family.request.prompt))
        num_new = max(end - family.num_covered, 0)
        family.num_covered += num_new
        self._num_computed_prompt_tokens += num_new
        self._num_recomputed_tokens += item.count - num_new

    def abandon(self, why: str, now: float) -> list[Delta]:
        """The steps in flight failed as a whole, and the device has forgotten all rows. Returns the news of the sequence that
        caused it, where that is known: it was suspected, and had the step for itself."""
        self._now = now
        self._num_failed_steps += 1
        involved = {row for work in self._in_flight.values() for row in work}
        suspects = [s for s in map(self._rows.__getitem__, involved) if s is not None and s.state is State.RUNNING]
        self._take_back_all()
        known = {id(sequence) for sequence in self._suspects}
        if len(suspects) == 1 and id(suspects[0]) in known:
            return [self._fail(suspects[0], RowFailure(NO_ROW, why))]
        self._suspects = sorted(self._suspects + [s for s in suspects if id(s) not in known], key=_rank)
        return []

    def recall(self, now: float) -> None:
        """What the device has computed so far is not to be trusted, and it has forgotten all rows: every sequence is computed
        again, from the tokens it has, and no block is reused."""
        self._now = now
        self._take_back_all()
        self._cache.forget()

    def _take_back_all(self) -> None:
        """No step is in flight any more, and who ran waits again."""
        self._in_flight.clear()
        self._planned.clear()
        self._misled.clear()
        for sequence in [s for s in self._rows if s is not None]:
            sequence.tables.withdraw(sequence.num_computed)
            if sequence.state is State.RUNNING:
                self._preempt(sequence, by="")
            else:
                self._give_back(sequence)
        self._ended_rows.clear()
        self._settle()

    def _take_late(
        self, work: dict[int, RowWork], sampled: dict[int, SampledRow], failures: dict[int, RowFailure], now: float
    ) -> list[Delta]:
        """Tokens of earlier steps that came with this one. Of rows that were given back since, nobody wants them."""
        deltas = []
        for row in [row for row in self._late if row not in work and (row in sampled or row in failures)]:
            if self._late[row] in self._misled:
                continue
            sequence = self._late.pop(row)
            sequence.num_awaited -= 1
            sequence.account.came(now)
            failed = row in failures
            deltas.append(
                self._fail(sequence, failures[row]) if failed else self._append(sequence, sampled[row], (), now)
            )
        return deltas

    def _fail(self, sequence: Sequence, failure: RowFailure) -> Delta:
        account = self._end(sequence, FinishReason.ERROR)
        return Delta(
            sequence.request.id,
            sequence.index,
            finish_reason=FinishReason.ERROR,
            account=account,
            error=failure.message,
            is_requests_fault=failure.is_requests_fault,
        )

    def _withdraw(self, work: dict[int, RowWork], failures: dict[int, RowFailure]) -> None:
        """Takes what failed rows offered out of the prefix tree, and what was computed from it likewise.

        Who has read it, or is about to in a step in flight, begins again when no step is in flight; also if he failed.
        """
        unsound: set[int] = set()  # blocks
        spoilt: set[Sequence] = set()
        # In the order of reading: a row reads only of rows planned before. Then those who went over to a block since.
        in_flight = (row for later in self._in_flight.values() for row in later)
        for row in (*work, *in_flight, *range(len(self._rows))):
            sequence = self._rows[row]
            if sequence is None or sequence in spoilt:
                continue
            if not unsound.isdisjoint(sequence.tables.held_blocks()):
                if sequence.state is State.RUNNING:
                    self._misled.add(sequence)
                    self._must_settle = True
            elif row not in failures or failures[row].is_requests_fault:  # its keys and values are sound
                continue
            spoilt.add(sequence)
            unsound.update(sequence.tables.withdraw(sequence.num_computed))
            sequence.tables.stop_publishing()

    def _settle(self) -> None:
        """No step is in flight: who is to give way or to begin again does so."""
        for request_id in self._preempt_when_settled:
            self.preempt(request_id)
        self._preempt_when_settled.clear()
        for sequence in self._misled:
            if sequence.state is State.RUNNING:
                self._preempt(sequence, by="")
        self._misled.clear()

    def _advance(self, sequence: Sequence, num_computed: int) -> None:
        sequence.num_computed = num_computed
        tables = sequence.tables
        if num_computed >= tables.next_full:
            tables.publish(sequence.tokens, num_computed)
        if num_computed >= tables.next_slide:
            tables.slide(num_computed)
        family = sequence.family
        if family.prefilling is sequence and num_computed >= sequence.num_prompt:
            family.prefilling = None

    def _discard(self, sequence: Sequence, work: RowWork) -> None:
        """The sequence ended while the step was in flight. Keys and values of tokens that we know may still serve others."""
        self._advance(sequence, min(work.start + work.count, len(sequence.tokens)))
        self._num_discarded += work.count
        if not self._is_in_flight(sequence.row):
            self._give_back(sequence)

    def _append(
        self, sequence: Sequence, sampled: SampledRow, prompt_logprobs: tuple[TokenLogprobs, ...], now: float
    ) -> Delta:
        """Appends sampled tokens up to the one that ends the sequence, if any does."""
        tokens, drawn = sequence.tokens, sampled.tokens
        num_cached = sequence.family.num_cached_tokens if len(tokens) == sequence.num_prompt else 0
        reason, stop_token, count = None, None, 0
        for token in drawn:
            tokens.append(token)
            count += 1
            if token in sequence.stop_tokens and len(tokens) > sequence.num_unstoppable:
                reason, stop_token = FinishReason.STOP, token
                break
            if len(tokens) >= sequence.max_len:
                reason = FinishReason.LENGTH
                break
        self._num_generated_tokens += count
        if self._suspects:
            self._acquit(sequence)
        account = None
        if reason is not None:
            account = self._end(sequence, reason)
            self._pace.ended(now, is_awaited=bool(self._waiting))
        return Delta(
            sequence.request.id,
            sequence.index,
            drawn if count == len(drawn) else drawn[:count],
            sampled.logprobs[:count] if sampled.logprobs else (),
            prompt_logprobs,
            num_cached or 0,
            reason,
            stop_token,
            pooled=sampled.pooled,
            account=account,
        )

    def _prompt_logprobs(self, sequence: Sequence, found: PromptLogprobs | None) -> tuple[TokenLogprobs, ...]:
        """Those not told before: a resumed sequence computes some positions again."""
        if found is None:
            return ()
        new = found.logprobs[max(0, sequence.num_prompt_logprobs_told - found.first) :]
        sequence.num_prompt_logprobs_told += len(new)
        return new

    # What both share

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_queue_key)

    def _preempt(self, sequence: Sequence, by: str, draft: StepDraft | None = None) -> None:
        """The sequence gives up its row and blocks, and any work of the step being planned, and waits again.

        `by`: the request that needs the room; "": none.
        """
        if draft is not None:
            assert sequence.tables.num_published_tokens <= sequence.num_computed, (
                "it has offered what will not be computed"
            )
            draft.remove(sequence.row)
        self._stop_running(sequence)
        self._give_back(sequence)
        sequence.state = State.WAITING
        sequence.account.preempt(self._now, by)
        sequence.num_computed = sequence.num_planned = sequence.num_awaited = 0
        self._enqueue(sequence)
        self._num_preemptions += 1

    def _end(self, sequence: Sequence, reason: FinishReason) -> Account:
        """Takes the sequence out for good. If steps are computing it, its row and blocks come back with the last."""
        if sequence.state is State.RUNNING:
            self._stop_running(sequence)
            if not self._is_in_flight(sequence.row):
                self._give_back(sequence)
        else:
            del self._waiting[bisect_left(self._waiting, sequence.queue_key, key=_queue_key)]
        sequence.state = State.ENDED
        family = sequence.family
        family.sequences.remove(sequence)
        if not family.sequences:
            del self._families[sequence.request.id]
            if family.num_cached_tokens is not None:
                self._num_left_prompt_tokens += sequence.num_prompt - family.num_covered
        self._num_ended[reason] += 1
        self._acquit(sequence)
        return sequence.account.close(self._now)

    def _acquit(self, sequence: Sequence) -> None:
        if sequence in self._suspects:
            self._suspects.remove(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        del self._running[bisect_left(self._running, sequence.rank, key=_rank)]
        if sequence.family.prefilling is sequence:
            sequence.family.prefilling = None

    def _is_in_flight(self, row: int) -> bool:
        return any(row in work for work in self._in_flight.values())

    def _give_back(self, sequence: Sequence) -> None:
        self._late.pop(sequence.row, None)
        sequence.tables.release()
        self._rows[sequence.row] = None
        self._ended_rows.append(sequence.row)
        heapq.heappush(self._free_rows, sequence.row)
        sequence.row = NO_ROW

    # What can be seen

    def blocks_ahead(self, num_bytes: int) -> int:
        """Blocks that were taken so far, and those of so many bytes more that may be taken before cached ones are evicted."""
        return self._cache.blocks_ahead(num_bytes // self._cache.spec.bytes_per_block)

    def stats(self) -> SchedulerStats:
        pool = self._cache.pool
        return SchedulerStats(
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=pool.num_free,
            held_blocks=pool.num_held,
            cached_blocks=pool.num_cached,
            preemptions=self._num_preemptions,
            evicted_blocks=pool.num_evicted,
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=self._num_cached_tokens,
            computed_prompt_tokens=self._num_computed_prompt_tokens,
            left_prompt_tokens=self._num_left_prompt_tokens,
            recomputed_tokens=self._num_recomputed_tokens,
            moved_bytes=self._num_copied_blocks * self._cache.spec.bytes_per_block,
            taken_blocks=pool.num_taken,
            freed_blocks=pool.num_freed,
            generated_tokens=self._num_generated_tokens,
            queue_seconds=self._queue_seconds,
            ended_by_stop=self._num_ended[FinishReason.STOP],
            ended_by_length=self._num_ended[FinishReason.LENGTH],
            cancelled=self._num_ended[FinishReason.CANCELLED],
            failed=self._num_ended[FinishReason.ERROR],
            planned_ahead=self._num_planned_ahead,
            discarded=self._num_discarded,
            held_back=dict(self._num_held_back),
            prompt_token_seconds=self._odometer.prompt_token_seconds,
            failed_steps=self._num_failed_steps,
            suspects=len(self._suspects),
        )

    def snapshot(self) -> Snapshot:
        running = sorted(self._running, key=lambda sequence: sequence.row)
        shown = islice(chain(running, self._waiting), MAX_SEQUENCES)
        return Snapshot(tuple(_view(sequence) for sequence in shown), outline(self._cache, MAX_CHAINS, MAX_BLOCKS))

    def assert_balanced(self) -> None:
        """Recounts every block and row from its owners; raises LedgerError where the books differ.

        Its cost grows with the pool: `commit` itself checks the three totals, and tests recount after every step.
        """
        owners = [sequence for sequence in self._rows if sequence is not None]
        audit(self._cache, [sequence.tables for sequence in owners])
        if sorted(self._free_rows) != [row for row, sequence in enumerate(self._rows) if sequence is None]:
            raise LedgerError("the free rows are not those that no sequence has")
        ended = [sequence for sequence in owners if sequence.state is State.ENDED]
        if any(not self._is_in_flight(sequence.row) for sequence in ended):
            raise LedgerError("an ended sequence has a row that no step in flight computes")
        if sorted(self._running + ended, key=_rank) != sorted(owners, key=_rank):
            raise LedgerError("the running sequences are not those that have rows")
        for sequence in [s for s in self._running if s not in self._misled]:
            work = [work[sequence.row] for work in self._in_flight.values() if sequence.row in work]
            if sequence.num_planned != sequence.num_computed + sum(item.count for item in work):
                raise LedgerError("the positions planned for a sequence are not those computed and those in flight")
            if sequence.num_awaited != sum(item.samples for item in work) + (sequence.row in self._late):
                raise LedgerError("a sequence awaits tokens that no step in flight draws, and none is late")


def _longest_sequence(max_model_len: int, spec: KVSpec, num_blocks: int) -> int:
    """Tokens of the longest sequence that can run alone to its end. The last token is never computed."""
    num_computed = bisect_right(
        range(1, max_model_len), num_blocks, key=lambda n: blocks_needed(spec.groups, spec.block_size, n, 1)
    )
    return num_computed + 1


def _broken_promise(sequence: Sequence, drawn: SampledRow | None) -> RowFailure | None:
    """A row that samples draws at least one token, and no more where a step in flight counts on one."""
    if drawn is None or not drawn.tokens:
        return RowFailure(sequence.row, "the device gave no token for the sequence")
    if sequence.num_awaited:
        return RowFailure(sequence.row, f"the device gave {len(drawn.tokens)} tokens where the next step counts on one")
    return None


def _view(sequence: Sequence) -> SequenceView:
    return SequenceView(
        row=sequence.row,
        prompt=sequence.num_prompt,
        cached=sequence.family.num_cached_tokens or 0,
        computed=sequence.num_computed,
        generated=sequence.num_generated,
        max_generated=sequence.max_len - sequence.num_prompt,
    )


def _priority(sequence: Sequence) -> int:
    return sequence.request.priority


def _rank(sequence: Sequence) -> tuple[int, float, str, int]:
    return sequence.rank


def _queue_key(sequence: Sequence) -> tuple[int, bool, float, str, int]:
    return sequence.queue_key
