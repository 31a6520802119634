"""Matching: which tokens each row may draw next, written into memory that the engine reads.

Rows that are served fast go first, and new ones before those that are slow, so that a slow grammar makes nobody wait but
its own row.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLExecutor, LLMatcher

from trivium.grammar.masks import map_masks
from trivium.grammar.messages import (
    Build,
    Built,
    Drop,
    Line,
    RowProblem,
    RowsUpdated,
    Setup,
    Started,
    ToMatching,
    UpdateRows,
)
from trivium.grammar.trial import SILENT, parser_limits, why_failed
from trivium.grammar.vocabulary import Vocabulary


@dataclass
class _Row:
    matcher: LLMatcher
    seconds: float = 0.0  # that its last mask took


@dataclass(frozen=True)
class _Task:
    row: int
    tokens: Sequence[int]  # drawn since its last mask
    number: int  # of the update


class MatchingServer:
    def __init__(self, line: Line[ToMatching], setup: Setup, vocabulary: Vocabulary) -> None:
        self._line = line
        self._vocabulary = vocabulary
        self._slow_mask = setup.limits.slow_mask
        self._limits = parser_limits(setup.limits)
        self._masks = map_masks(setup.mask_descriptor, setup.num_rows, setup.vocab_size)
        self._executor = LLExecutor(num_threads=setup.num_threads) if setup.num_threads > 1 else None
        self._built: dict[int, LLMatcher] = {}  # at their beginning; rows have copies
        self._rows: dict[int, _Row] = {}
        self._slow: deque[_Task] = deque()
        self._one_by_one = False  # for once, to see who is slow
        self._sending = threading.Lock()

    def run(self) -> None:
        """Until the engine is gone."""
        self._send(Started())
        try:
            while True:
                for message in self._line.receive(0.0 if self._slow else None):
                    self._take(message)
                if self._slow:
                    task = self._slow.popleft()
                    self._serve([task], task.number)
        except EOFError:
            return

    def _take(self, message: ToMatching) -> None:
        match message:
            case Build(key, compiled, at_once=True):
                self._built[key] = self._matcher(compiled)
            case Build():
                # Others' masks go on meanwhile: the matcher lets other threads run while it compiles.
                threading.Thread(target=self._build, args=(message,), daemon=True).start()
            case Drop(key):
                self._built.pop(key, None)
            case UpdateRows():
                self._update(message)

    def _build(self, message: Build) -> None:
        matcher = self._matcher(message.compiled)
        self._built[message.key] = matcher
        self._send(Built(message.key, why_failed(matcher) if matcher.is_error() else ""))

    def _matcher(self, compiled: str) -> LLMatcher:
        return LLMatcher(self._vocabulary.matcher_tokens, compiled, log_level=SILENT, limits=self._limits)

    def _send(self, message: Started | Built | RowsUpdated) -> None:
        with self._sending:
            self._line.send(message)

    def _update(self, update: UpdateRows) -> None:
        for row in update.closed:
            self._rows.pop(row, None)
        if self._slow:
            self._slow = deque(task for task in self._slow if task.row not in update.closed)
        for opening in update.opened:
            self._rows[opening.row] = _Row(self._built[opening.key].deep_copy())
        tasks = [_Task(opening.row, opening.tokens, update.number) for opening in update.opened]
        tasks += [_Task(advance.row, (advance.token,), update.number) for advance in update.advanced]
        self._slow += [task for task in tasks if self._is_slow(task)]
        if fast := [task for task in tasks if not self._is_slow(task)]:
            self._serve(fast, update.number)

    def _is_slow(self, task: _Task) -> bool:
        return self._rows[task.row].seconds > self._slow_mask

    def _serve(self, tasks: list[_Task], number: int) -> None:
        if self._executor is not None and len(tasks) > 1 and not self._one_by_one:
            self._fill_together(tasks, self._executor)
        else:
            self._one_by_one = False
            for task in tasks:
                self._fill(task)
        rows = [task.row for task in tasks]
        problems = [
            RowProblem(row, why_failed(matcher)) for row in rows if (matcher := self._rows[row].matcher).is_error()
        ]
        self._send(RowsUpdated(number, rows, problems))

    def _fill(self, task: _Task) -> None:
        row, mask = self._rows[task.row], self._masks[task.row]
        began = time.monotonic()
        if task.tokens:
            row.matcher.consume_tokens(list(task.tokens))
        row.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        row.seconds = time.monotonic() - began

    def _fill_together(self, tasks: list[_Task], executor: LLExecutor) -> None:
        """On several threads."""
        began = time.monotonic()
        for task in tasks:
            if task.tokens:
                self._rows[task.row].matcher.consume_tokens(list(task.tokens))
        matchers = [(self._rows[task.row].matcher, task.row) for task in tasks]
        executor.unsafe_compute_mask_ptr(matchers, self._masks.ctypes.data, self._masks.strides[0], len(self._masks))
        self._one_by_one = time.monotonic() - began > 2 * self._slow_mask
