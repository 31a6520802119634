"""Rows that have a grammar, as the engine's side knows them: what the grammar process has still to be told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trivium.grammar.messages import RowAdvance, RowProblem
from trivium.types.request import Grammar


class Asked(NamedTuple):
    number: int  # of the update
    at: float  # seconds of CLOCK_MONOTONIC


class RowChanges:
    def __init__(self) -> None:
        self.held: set[int] = set()
        self.closed: list[int] = []
        self.opened: dict[int, tuple[Grammar, tuple[int, ...]]] = {}  # with the tokens generated before
        self.advanced: list[RowAdvance] = []
        self.problems: dict[int, RowProblem] = {}  # of rows held
        self.awaited: dict[int, Asked] = {}  # by row: which mask of it has not come
        self._heard_at = 0.0  # when masks came last, in seconds of CLOCK_MONOTONIC

    def __bool__(self) -> bool:
        return bool(self.closed or self.opened or self.advanced)

    def open(self, row: int, compiled: Grammar, tokens: tuple[int, ...]) -> None:
        self.close(row)
        self.held.add(row)
        self.opened[row] = compiled, tokens

    def close(self, row: int) -> None:
        if row not in self.held:
            return
        self.held.remove(row)
        self.problems.pop(row, None)
        self.awaited.pop(row, None)
        self.advanced = [advance for advance in self.advanced if advance.row != row]
        if self.opened.pop(row, None) is None:
            self.closed.append(row)

    def advance(self, row: int, token: int) -> None:
        if row not in self.problems:
            self.advanced.append(RowAdvance(row, token))

    def sent(self, number: int, now: float) -> None:
        changed = [*self.opened, *(advance.row for advance in self.advanced)]
        self.awaited |= dict.fromkeys(changed, Asked(number, now))
        self.closed, self.opened, self.advanced = [], {}, []

    def silent_seconds(self, now: float) -> float:
        """For which masks are awaited and none came. Who has many to fill on a busy machine is late, but not silent."""
        return now - max(self._heard_at, min((asked.at for asked in self.awaited.values()), default=now))

    def answered(self, number: int, rows: Sequence[int], problems: Sequence[RowProblem], now: float) -> None:
        """A row that was given to another since awaits a later number."""
        self._heard_at = now
        mine = {row for row in rows if row in self.awaited and self.awaited[row].number == number}
        self.problems |= {problem.row: problem for problem in problems if problem.row in mine}
        for row in mine:
            del self.awaited[row]

    def lose_all(self, why: str) -> None:
        """The process is gone, and what it knew of rows with it."""
        self.problems |= {row: RowProblem(row, why, is_requests_fault=False) for row in self.held}
        self.closed, self.opened, self.advanced = [], {}, []
        self.awaited = {}
