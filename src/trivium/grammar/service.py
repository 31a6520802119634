"""The engine's side of the grammar process: grammars prepared outside of the batch, masks asked for ahead of their use.

Nothing here waits but `wait_for_masks`, and that for an answer that was asked for before the model ran.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trivium.faults import fault_point
from trivium.grammar.child import GrammarProcess
from trivium.grammar.limits import GrammarLimits
from trivium.grammar.messages import (
    Build,
    Built,
    Drop,
    FromMatching,
    RowOpening,
    RowProblem,
    RowsUpdated,
    Started,
    Trial,
    Try,
    UpdateRows,
)
from trivium.grammar.rows import RowChanges
from trivium.types.errors import InvalidRequestError, OverloadedError, RequestFailedError, TriviumError
from trivium.types.grammar_stats import GrammarStats
from trivium.types.request import Grammar, GrammarKind

log = logging.getLogger(__name__)

ENDED = "the grammar process ended"


@dataclass
class Preparation:
    """Of one grammar, begun by the first request that has it; later ones find it done."""

    compiled: Grammar | None = None
    error: TriviumError | None = None

    @property
    def is_done(self) -> bool:
        return self.compiled is not None or self.error is not None


@dataclass
class _Counts:
    compiled: int = 0
    refused: int = 0
    reused: int = 0
    compile_seconds: float = 0.0
    mask_wait_seconds: float = 0.0
    late_masks: int = 0


@dataclass(frozen=True)
class _Kept:
    key: int
    num_bytes: int


class GrammarService:
    def __init__(
        self,
        model: str,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        num_rows: int,
        num_threads: int = 1,
        limits: GrammarLimits | None = None,
    ) -> None:
        """`model`: its path. The process is started when the first grammar comes."""
        self._limits = limits or GrammarLimits()
        self._setup = (model, vocab_size, tuple(eos_token_ids), num_rows, num_threads, self._limits)
        self._process: GrammarProcess | None = None
        self._known: OrderedDict[Grammar, Preparation] = OrderedDict()  # those used last are last
        self._trials: dict[int, Preparation] = {}  # under way, by ticket
        self._builds: dict[int, tuple[Preparation, Grammar]] = {}  # under way, by key
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # matchers the process has, by the grammar's compiled text
        self._rows = RowChanges()
        self._late: set[int] = set()  # rows without a mask when they were last to draw
        self._last_number = 0
        self._counts = _Counts()

    # Grammars

    def prepare(self, grammar: Grammar) -> Preparation:
        """Begins to compile the grammar unless that was done before. Raises where too many wait."""
        grammar = replace(grammar, param="")  # where it came from is no part of it
        found = self._known.get(grammar)
        if found is not None:
            self._known.move_to_end(grammar)
            self._counts.reused += 1
            return found
        size, most = len(grammar.text.encode()), self._limits.text_bytes
        if size > most:
            raise InvalidRequestError(f"a grammar may have {most} bytes at most, but this one has {size}")
        if len(self._trials) >= self._limits.waiting:
            raise OverloadedError(f"{len(self._trials)} grammars wait to be compiled already", retry_after=1.0)
        preparation = self._known[grammar] = Preparation()
        ticket = self._number()
        self._trials[ticket] = preparation
        try:
            self._running().trials.send(Try(ticket, grammar))
        except EOFError:
            self._lose(ENDED)
        while len(self._known) > 4 * self._limits.kept and next(iter(self._known.values())).is_done:
            self._known.popitem(last=False)
        return preparation

    def poll(self, seconds: float = 0.0) -> None:
        """Takes in what the process has said, waiting for it so long at most."""
        process = self._process
        if process is None:
            return
        try:
            for trial in process.trials.receive(seconds if self._trials else 0.0):
                self._take_trial(trial)
            for message in process.matching.receive(seconds if self._builds else 0.0):
                self._take(message)
        except EOFError:
            self._lose(_last_words(process))

    # Rows

    @property
    def masks(self) -> NDArray[np.int32]:
        """int32 [rows, words]: see grammar.masks."""
        return self._running().masks

    def has_row(self, row: int) -> bool:
        return row in self._rows.held

    def open_row(self, row: int, compiled: Grammar, tokens: Sequence[int]) -> None:
        """From here on the row draws what the grammar allows after `tokens`, which were generated before."""
        self._rows.open(row, compiled, tuple(tokens))

    def close_row(self, row: int) -> None:
        self._rows.close(row)

    def advance_row(self, row: int, token: int) -> None:
        self._rows.advance(row, token)

    def ask_for_masks(self) -> None:
        """Tells the process what has changed; it fills their masks while the caller goes on."""
        changes = self._rows
        if not changes:
            return
        fault_point("grammar.update")
        try:
            opened = [
                RowOpening(row, self._key_of(compiled.text), tokens)
                for row, (compiled, tokens) in changes.opened.items()
            ]
            number = self._number()
            self._running().matching.send(UpdateRows(number, changes.closed, opened, changes.advanced))
            changes.sent(number, time.monotonic())
        except EOFError:
            self._lose(ENDED)

    def wait_for_masks(self, rows: Sequence[int], *, is_idle: bool) -> set[int]:
        """Those of the rows that have no mask yet. The others are not kept waiting for more than a moment, and for one that
        was late before, not even that; but where there is nothing else to do, until one of them has its mask."""
        if not self._rows.awaited:
            return set()
        fault_point("grammar.masks")
        began = now = time.monotonic()
        while late := self._rows.awaited.keys() & set(rows):
            if self._rows.silent_seconds(now) > self._limits.answer_seconds:
                self._lose(f"the grammar process gave no answer within {self._limits.answer_seconds:g} s")
                continue
            may_go_on = not is_idle or len(late) < len(rows)
            patience = began + self._limits.mask_patience - now if late - self._late else 0.0
            has_news = self._take_answers(max(patience, 0.0) if may_go_on else self._limits.answer_seconds)
            if may_go_on and not has_news:
                break
            now = time.monotonic()
        self._late = late
        self._counts.late_masks += len(late)
        self._counts.mask_wait_seconds += time.monotonic() - began
        return late

    def _take_answers(self, seconds: float) -> bool:
        """Whether there were any."""
        try:
            messages = self._running().matching.receive(seconds)
        except EOFError:
            self._lose(ENDED)
            return True
        for message in messages:
            self._take(message)
        return bool(messages)

    @property
    def problems(self) -> Mapping[int, RowProblem]:
        """Rows that will have no mask, with the reason."""
        return self._rows.problems

    @property
    def pid(self) -> int | None:
        """Of the process, where it runs."""
        return self._process.pid if self._process is not None else None

    def stats(self, preparing: int = 0) -> GrammarStats:
        return GrammarStats(preparing=preparing, **dataclasses.asdict(self._counts))

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    # What the process says

    def _take_trial(self, trial: Trial) -> None:
        preparation = self._trials.pop(trial.ticket)
        self._counts.compile_seconds += trial.seconds
        if trial.compiled is None:
            self._counts.refused += 1
            kind = RequestFailedError if trial.is_our_fault else InvalidRequestError
            preparation.error = kind(trial.why)
            if trial.is_our_fault:  # whoever asks again may have better luck
                self._known = OrderedDict(item for item in self._known.items() if item[1] is not preparation)
            return
        self._counts.compiled += 1
        key = self._keep(trial.compiled, trial.num_bytes)
        self._builds[key] = preparation, Grammar(GrammarKind.COMPILED, trial.compiled)
        self._running().matching.send(Build(key, trial.compiled))

    def _take(self, message: FromMatching) -> None:
        match message:
            case Built(key, why_not):
                preparation, compiled = self._builds.pop(key)
                if why_not:
                    preparation.error = InvalidRequestError(why_not)
                else:
                    preparation.compiled = compiled
            case RowsUpdated(number, rows, problems):
                self._rows.answered(number, rows, problems, time.monotonic())

    # What the process has

    def _key_of(self, compiled: str) -> int:
        kept = self._kept.get(compiled)
        if kept is not None:
            self._kept.move_to_end(compiled)
            return kept.key
        key = self._keep(compiled, len(compiled))
        self._running().matching.send(Build(key, compiled, at_once=True))
        return key

    def _keep(self, compiled: str, num_bytes: int) -> int:
        """A key for a matcher to be built; those not used for the longest time make room."""
        matching = self._running().matching
        if (before := self._kept.pop(compiled, None)) is not None:
            matching.send(Drop(before.key))
        while self._kept and (
            len(self._kept) >= self._limits.kept
            or num_bytes + sum(kept.num_bytes for kept in self._kept.values()) > self._limits.kept_bytes
        ):
            _, oldest = self._kept.popitem(last=False)
            matching.send(Drop(oldest.key))
        key = self._number()
        self._kept[compiled] = _Kept(key, num_bytes)
        return key

    def _running(self) -> GrammarProcess:
        if self._process is None:
            self._process = GrammarProcess(*self._setup)
        return self._process

    def _lose(self, why: str) -> None:
        """The process is gone or must go: what was under way fails, and the next grammar starts another."""
        log.warning("%s; it is started again when it is needed", why)
        self.close()
        for grammar, preparation in list(self._known.items()):
            if not preparation.is_done:
                preparation.error = RequestFailedError(why)
                del self._known[grammar]
        self._trials.clear()
        self._builds.clear()
        self._kept.clear()
        self._rows.lose_all(why)

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number


def _last_words(process: GrammarProcess) -> str:
    """Why it could not start, where that is why it ended."""
    with contextlib.suppress(EOFError):
        for message in process.matching.receive(0.0):
            if isinstance(message, Started) and message.why_not:
                return message.why_not
    return ENDED
