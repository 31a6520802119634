"""Matching: which tokens each row may draw next, written into memory that the engine reads."""

from __future__ import annotations

import threading
from collections.abc import Iterable

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


class MatchingServer:
    def __init__(self, line: Line[ToMatching], setup: Setup, vocabulary: Vocabulary) -> None:
        self._line = line
        self._vocabulary = vocabulary
        self._limits = parser_limits(setup.limits)
        self._masks = map_masks(setup.mask_descriptor, setup.num_rows, setup.vocab_size)
        self._executor = LLExecutor(num_threads=setup.num_threads) if setup.num_threads > 1 else None
        self._built: dict[int, LLMatcher] = {}  # at their beginning; rows have copies
        self._rows: dict[int, LLMatcher] = {}
        self._sending = threading.Lock()

    def run(self) -> None:
        """Until the engine is gone."""
        self._send(Started())
        try:
            while True:
                for message in self._line.receive():
                    self._take(message)
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
                self._send(RowsUpdated(message.number, list(self._update(message))))

    def _build(self, message: Build) -> None:
        matcher = self._matcher(message.compiled)
        self._built[message.key] = matcher
        self._send(Built(message.key, why_failed(matcher) if matcher.is_error() else ""))

    def _matcher(self, compiled: str) -> LLMatcher:
        return LLMatcher(self._vocabulary.matcher_tokens, compiled, log_level=SILENT, limits=self._limits)

    def _send(self, message: Started | Built | RowsUpdated) -> None:
        with self._sending:
            self._line.send(message)

    def _update(self, update: UpdateRows) -> Iterable[RowProblem]:
        for row in update.closed:
            self._rows.pop(row, None)
        changed: list[int] = []
        for opening in update.opened:
            matcher = self._rows[opening.row] = self._built[opening.key].deep_copy()
            if opening.tokens:
                matcher.consume_tokens(list(opening.tokens))
            changed.append(opening.row)
        for advance in update.advanced:
            self._rows[advance.row].consume_token(advance.token)
            changed.append(advance.row)
        self._fill(changed)
        for row in changed:
            matcher = self._rows[row]
            if matcher.is_error():
                yield RowProblem(row, why_failed(matcher))

    def _fill(self, rows: list[int]) -> None:
        if self._executor is not None and len(rows) > 1:
            matchers = [(self._rows[row], row) for row in rows]
            self._executor.unsafe_compute_mask_ptr(
                matchers, self._masks.ctypes.data, self._masks.strides[0], len(self._masks)
            )
            return
        for row in rows:
            mask = self._masks[row]
            self._rows[row].unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
