"""A device without arithmetic that notices every wrong read.

The "key and value" of a position is a hash of the salt, of all tokens up to the position, and of the KV group: what a
real model would compute, up to its arithmetic. Before a row "attends", every position that its queries may see must
hold exactly that, so a wrong, stale, uncopied or foreign block cannot pass. The next token is a pure function of
request, sequence and position; crosstalk between rows shows as a wrong token.

A row that fails leaves nothing sound in the blocks it wrote. Rows of the same step, or of one planned before the failure
was heard of, may read them, and then tell nonsense, as does the failed row itself; nobody may read them after that.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from trivium.types.kv import KVSpec
from trivium.types.request import Request
from trivium.types.step import (
    PromptLogprobs,
    RowFailure,
    RowStart,
    RowWork,
    SampledRow,
    Step,
    StepResult,
    TokenLogprobs,
)

UNWRITTEN = None
UNSOUND = -1  # what a row that failed wrote
NONSENSE = 10**6  # a token that nobody may hear of


class WrongRead(AssertionError):
    """A row would have read something that is not its own."""


def next_token(request: Request, index: int, position: int, vocab_size: int = 8) -> int:
    """The token at `position` of a sequence, whatever happened on the way there. A stop token is never drawn early."""
    token = zlib.crc32(f"{request.id}/{index}/{position}".encode()) % vocab_size
    early = position - len(request.prompt) < request.stopping.min_tokens
    return vocab_size if early and token in request.stopping.stop_token_ids else token


def logprobs_of(token: int, position: int) -> TokenLogprobs:
    return TokenLogprobs(token=token, logprob=-float(position), rank=1)


@dataclass
class Row:
    start: RowStart
    request: Request
    tables: list[list[int]]
    tokens: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=list)  # a hash of the salt and tokens 0 … i
    is_spoilt: bool = False  # it failed, or read what a failed row wrote

    def append(self, token: int) -> None:
        before = self.prefixes[-1] if self.prefixes else zlib.crc32(self.request.salt.encode())
        self.tokens.append(token)
        self.prefixes.append(hash((before, token)))


class FakeDevice:
    def __init__(self, spec: KVSpec, num_blocks: int, requests: Callable[[str], Request]) -> None:
        self._spec = spec
        self._requests = requests
        self.rows: dict[int, Row] = {}
        self.blocks: list[list[int | None]] = [[UNWRITTEN] * spec.block_size for _ in range(num_blocks)]
        self.late: set[int] = set()  # rows whose token is drawn with a later step
        self.num_shared_reads = 0  # positions that a row read and another row of the same step wrote

    def run(
        self,
        step: Step,
        num_tokens: Callable[[RowWork], int] = lambda work: 1,
        fails: Callable[[RowWork], bool] = lambda work: False,
        is_ahead_of_failures: bool = False,
        is_late: Callable[[int], bool] = lambda row: False,
    ) -> StepResult:
        """`is_ahead_of_failures`: the step was planned when failures of an earlier one were not yet heard of. `is_late`:
        whether a row that could draw does not draw with this step."""
        for row in step.ends:
            del self.rows[row]
            self.late.discard(row)
        for start in step.starts:
            self._start(start)
        self._copy(step)
        for work in step.work:
            self._update_tables(work)
        writers = self._write(step)
        sampled, prompt_logprobs, failures = [], [], []
        late_before = sorted(self.late)
        unsound: set[int] = set()  # blocks
        for work in step.work:
            row = self.rows[work.row]
            assert work.row not in self.late, "a row goes on before it has its token"
            assert work.samples == (work.start + work.count == len(row.tokens)), "samples exactly when it catches up"
            was_spoilt = row.is_spoilt
            assert not was_spoilt or is_ahead_of_failures, "a row goes on from what is not sound"
            is_misled = not was_spoilt and self._read(work, writers, unsound, is_ahead_of_failures)
            has_failed = not was_spoilt and fails(work)
            if was_spoilt or is_misled or has_failed:
                unsound.update(self._spoil(work))
                if has_failed:
                    failures.append(RowFailure(work.row, "the fake failed"))
                elif work.samples:
                    sampled.append(SampledRow(work.row, (NONSENSE,)))
                continue
            if row.start.sampling.prompt_logprobs is not None:
                end = min(work.start + work.count, row.start.num_prompt_tokens - 1)
                if end > work.start:
                    entries = tuple(logprobs_of(row.tokens[p + 1], p + 1) for p in range(work.start, end))
                    prompt_logprobs.append(PromptLogprobs(work.row, work.start + 1, entries))
            if work.samples and is_late(work.row):
                self.late.add(work.row)
            elif work.samples:
                sampled.append(self._sample(work.row, row, num_tokens(work)))
        late = tuple(self.late.difference(late_before))
        for row_id in late_before:
            if not is_late(row_id):
                self.late.remove(row_id)
                sampled.append(self._sample(row_id, self.rows[row_id], 1))
        return StepResult(step.id, tuple(sampled), tuple(prompt_logprobs), tuple(failures), late)

    def _start(self, start: RowStart) -> None:
        assert start.row not in self.rows, f"row {start.row} is taken"
        row = Row(start, self._requests(start.request_id), [[] for _ in self._spec.groups])
        for token in start.tokens:
            row.append(token)
        self.rows[start.row] = row

    def _copy(self, step: Step) -> None:
        written: set[int] = set()
        for copy in step.copies:
            # Then it does not matter whether a device copies one by one or all at once.
            assert copy.src not in written and copy.dst not in written, "copies depend on each other"
            written.add(copy.dst)
            self.blocks[copy.dst] = list(self.blocks[copy.src])

    def _update_tables(self, work: RowWork) -> None:
        for update in work.tables:
            table = self.rows[work.row].tables[update.group]
            assert update.first <= len(table), "a table has no gaps"
            table[update.first : update.first + len(update.blocks)] = update.blocks

    def _write(self, step: Step) -> dict[int, int]:
        """By block: the row that wrote it."""
        writers: dict[int, int] = {}
        size = self._spec.block_size
        for work in step.work:
            row = self.rows[work.row]
            for group, table in enumerate(row.tables):
                for position in range(work.start, work.start + work.count):
                    block = table[position // size]
                    assert block >= 0, "a row writes where it has no block"
                    assert writers.setdefault(block, work.row) == work.row, f"two rows write block {block}"
                    self.blocks[block][position % size] = row.prefixes[position] + group
        return writers

    def _read(self, work: RowWork, writers: dict[int, int], unsound: set[int], is_ahead_of_failures: bool) -> bool:
        """Whether it reads blocks that a row spoilt in this very step, or in one whose failures were not yet heard of."""
        row, size = self.rows[work.row], self._spec.block_size
        is_misled = False
        for group, table in enumerate(row.tables):
            window = self._spec.groups[group].window
            first = 0 if window is None else max(0, work.start - window + 1)
            for position in range(first, work.start + work.count):
                block = table[position // size]
                self.num_shared_reads += writers.get(block, work.row) != work.row
                if block in unsound or (is_ahead_of_failures and self.blocks[block][position % size] == UNSOUND):
                    is_misled = True
                elif block < 0 or self.blocks[block][position % size] != row.prefixes[position] + group:
                    raise WrongRead(
                        f"step reads position {position} of {row.start.request_id}/{row.start.index}"
                        f" in group {group} from block {block}, which does not hold it"
                    )
        return is_misled

    def break_down(self, step: Step) -> None:
        """The step fails as a whole, when it has written; the rows are forgotten, and their blocks hold what they hold."""
        for row in step.ends:
            del self.rows[row]
        for start in step.starts:
            self._start(start)
        self._copy(step)
        for work in step.work:
            self._update_tables(work)
        for work in step.work:
            self._spoil(work)
        self.rows.clear()
        self.late.clear()

    def _spoil(self, work: RowWork) -> set[int]:
        """The blocks that the row wrote; they hold nothing sound any more."""
        row, size = self.rows[work.row], self._spec.block_size
        spoilt = set()
        for table in row.tables:
            for position in range(work.start, work.start + work.count):
                self.blocks[table[position // size]][position % size] = UNSOUND
                spoilt.add(table[position // size])
        row.is_spoilt = True
        if work.samples:
            row.append(NONSENSE)
        return spoilt

    def _sample(self, row_id: int, row: Row, count: int) -> SampledRow:
        tokens = []
        for _ in range(count):
            tokens.append(next_token(row.request, row.start.index, len(row.tokens)))
            row.append(tokens[-1])
        entries = ()
        if row.start.sampling.logprobs is not None:
            first = len(row.tokens) - count
            entries = tuple(logprobs_of(token, first + i) for i, token in enumerate(tokens))
        return SampledRow(row_id, tuple(tokens), entries)
