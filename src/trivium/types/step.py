"""One plan out, one result in: what a step tells the device to do, and what comes back.

Rows persist on the device between steps: a row knows its tokens (also those it sampled itself), its block tables and
its sampling parameters. A step therefore carries only what changed.
"""

from __future__ import annotations

from msgspec import Struct

from trivium.types.request import Sampling, Stopping


class RowStart(Struct, frozen=True):
    """A row is taken by a sequence: new, forked, or resumed after a preemption."""

    row: int
    request_id: str
    index: int  # which of the request's n sequences
    tokens: tuple[int, ...]  # the prompt, and what was generated before a preemption
    num_prompt_tokens: int
    sampling: Sampling
    stopping: Stopping


class TableUpdate(Struct, frozen=True):
    """Entries of one row's block table in one group, from logical index `first` on. -1: out of the window, never read."""

    group: int
    first: int
    blocks: tuple[int, ...]


class RowWork(Struct, frozen=True):
    """Compute positions start … start + count - 1 of a row; sample its next token if it has then caught up."""

    row: int
    start: int
    count: int
    samples: bool
    tables: tuple[TableUpdate, ...] = ()


class BlockCopy(Struct, frozen=True):
    """Copy a block's content before this step writes: the copy half of copy-on-write."""

    src: int
    dst: int


class Step(Struct, frozen=True):
    """Applied in this order: ends, starts, copies, work."""

    id: int
    ends: tuple[int, ...]  # rows given back since the last step
    starts: tuple[RowStart, ...]
    copies: tuple[BlockCopy, ...]
    work: tuple[RowWork, ...]

    @property
    def num_tokens(self) -> int:
        return sum(work.count for work in self.work)


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """Log probabilities at one position, of the model's distribution before temperature and penalties."""

    token: int
    logprob: float
    rank: int  # 1 is the likeliest
    top_tokens: tuple[int, ...] = ()  # likeliest first
    top_logprobs: tuple[float, ...] = ()


class SampledRow(Struct, frozen=True):
    row: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token where the row asked for them
    pooled: bytes = b""  # float32 [H], the hidden state that the token was drawn from, where the row asked for it


class PromptLogprobs(Struct, frozen=True):
    """Of the prompt tokens that the positions of this step predict: entry i is of token `first + i`."""

    row: int
    first: int
    logprobs: tuple[TokenLogprobs, ...]


class RowFailure(Struct, frozen=True):
    """This row alone failed (logits that are not numbers, say); the others' results stand."""

    row: int
    message: str
    is_requests_fault: bool = False  # the same request would fail anywhere


class StepResult(Struct, frozen=True):
    step_id: int
    sampled: tuple[SampledRow, ...]
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    failures: tuple[RowFailure, ...] = ()
    late: tuple[int, ...] = ()  # rows of the step whose token comes with the result of a later one
    replayed: bool = False  # computed by a recorded graph
