"""A step while it is being planned. Work can be taken back: a row may be preempted after it was given its share."""

from __future__ import annotations

from collections.abc import Sequence as Many

from trivium.schedule.sequence import Sequence
from trivium.types.step import BlockCopy, RowStart, RowWork, Step


class StepDraft:
    __slots__ = ("_copies", "_promised", "_starts", "budget", "started", "work")

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens left
        self.work: dict[int, RowWork] = {}  # by row
        self.started: set[int] = set()  # rows
        self._starts: list[RowStart] = []
        self._copies: list[BlockCopy] = []
        self._promised: dict[int, int] = {}  # by row: blocks that rows in mid-prompt will still take

    @property
    def num_promised_blocks(self) -> int:
        return sum(self._promised.values())

    def start(self, sequence: Sequence) -> None:
        self._starts.append(sequence.row_start())
        self.started.add(sequence.row)

    def add(self, sequence: Sequence, count: int, copies: Many[BlockCopy] = ()) -> None:
        """The next `count` positions of the sequence; its tables have room for them."""
        row, start, tables = sequence.row, sequence.num_planned, sequence.tables
        catches_up = start + count == len(sequence.tokens) + sequence.num_awaited
        updates = tables.take_updates() if tables.has_changes else ()
        self.work[row] = RowWork(row, start, count, catches_up, updates)
        sequence.num_planned = start + count
        sequence.num_awaited += catches_up
        self.budget -= count
        self._copies.extend(copies)
        if not catches_up:
            self._promised[row] = tables.num_more_blocks(len(sequence.tokens))

    def remove(self, row: int) -> None:
        """Takes back what the row was to compute. It did not start in this step, hence has no copies: sequences start
        in order of priority, and displace none of their own."""
        work = self.work.pop(row, None)
        if work is not None:
            self.budget += work.count
            self._promised.pop(row, None)

    def finish(self, step_id: int, ends: tuple[int, ...]) -> Step:
        return Step(step_id, ends, tuple(self._starts), tuple(self._copies), tuple(self.work.values()))
