"""Rows that have a grammar, as the engine's side knows them: what the grammar process has still to be told of them."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.grammar.messages import RowAdvance, RowProblem
from trivium.types.request import Grammar


class RowChanges:
    def __init__(self) -> None:
        self.held: set[int] = set()
        self.closed: list[int] = []
        self.opened: dict[int, tuple[Grammar, tuple[int, ...]]] = {}  # with the tokens generated before
        self.advanced: list[RowAdvance] = []
        self.problems: dict[int, RowProblem] = {}  # of rows held
        self.awaited: int | None = None  # the number of the last update sent, until its answer has come

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
        self.advanced = [advance for advance in self.advanced if advance.row != row]
        if self.opened.pop(row, None) is None:
            self.closed.append(row)

    def advance(self, row: int, token: int) -> None:
        if row not in self.problems:
            self.advanced.append(RowAdvance(row, token))

    def sent(self, number: int) -> None:
        self.awaited = number
        self.closed, self.opened, self.advanced = [], {}, []

    def answered(self, number: int, problems: Sequence[RowProblem]) -> None:
        self.problems |= {problem.row: problem for problem in problems if problem.row in self.held}
        if number == self.awaited:
            self.awaited = None

    def lose_all(self, why: str) -> None:
        """The process is gone, and what it knew of rows with it."""
        self.problems |= {row: RowProblem(row, why, is_requests_fault=False) for row in self.held}
        self.sent(0)
        self.awaited = None
