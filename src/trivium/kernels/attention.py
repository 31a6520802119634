"""Where the keys and values of a step's rows lie in the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionBatch:
    """The rows of one step, as one KV group sees them. R rows, T tokens."""

    query_starts: Tensor  # int32 [R + 1]: row r's tokens are query_starts[r] … query_starts[r + 1] - 1 of the step
    context_lens: Tensor  # int32 [R]: keys present, with this step's; the row's tokens are the last of them
    block_table: Tensor  # int32 [R, max_blocks]: the block of each block_size positions; -1: out of the window
    slots: Tensor  # int64 [T]: block * block_size + offset where each token's key and value are written
