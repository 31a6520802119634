"""Where the keys and values of a step's rows lie in the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

# A library may be asked to attend to a row without earlier keys if its tokens are a multiple of this. cuDNN is a tenth faster
# than our kernel on an H200, but plans 40 ms for each length that is new to it: these few are met at the start.
PLANNED_LENGTHS = 4096


@dataclass(frozen=True)
class AttentionBatch:
    """The rows of one step, as one KV group sees them. R rows, T tokens."""

    query_starts: Tensor  # int32 [R + 1]: row r's tokens are query_starts[r] … query_starts[r + 1] - 1 of the step
    context_lens: Tensor  # int32 [R]: keys present, with this step's; the row's tokens are the last of them
    block_table: Tensor  # int32 [R, max_blocks]: the block of each block_size positions; -1: out of the window
    slots: Tensor  # int64 [T]: block * block_size + offset where each token's key and value are written
    # What the host knows of the rows; a provider may choose by it, and must be right without.
    num_single: int = 0  # rows at the front that have one token each
    is_decode: bool = False  # all rows have one token, and none sees what another writes in this step
    spans: tuple[tuple[int, int], ...] = ()  # (tokens, keys) of each row after the single ones; (): not told

    @cached_property  # once for all layers
    def single_rows(self) -> AttentionBatch:
        """The rows at the front that have one token each."""
        return self.rows(slice(0, self.num_single), self.slots[: self.num_single])

    @cached_property
    def other_rows(self) -> AttentionBatch:
        """The rows behind those; their `query_starts` and `slots` count in the whole step."""
        return self.rows(slice(self.num_single, None), self.slots)

    def rows(self, rows: slice, slots: Tensor) -> AttentionBatch:
        starts = self.query_starts[rows.start :] if rows.stop is None else self.query_starts[: rows.stop + 1]
        return replace(
            self,
            query_starts=starts,
            context_lens=self.context_lens[rows],
            block_table=self.block_table[rows],
            slots=slots,
            num_single=0,
        )


@dataclass(frozen=True)
class HeadRules:
    """What a layer's attention does with its heads."""

    head_dim: int
    scale: float  # of the scores
    window: int | None  # a query sees this many keys, itself included; None sees all
    softcap: float | None  # of the scores
    q_norm: Tensor | None = None  # [head_dim]: an RMS norm over each head, before it turns
    k_norm: Tensor | None = None
    norm_eps: float = 0.0
