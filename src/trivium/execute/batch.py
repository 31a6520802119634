"""The input of one step, built from the rows and thrown away after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.execute.rows import Rows
from trivium.kernels.attention import AttentionBatch
from trivium.types.step import RowWork


@dataclass(frozen=True)
class Batch:
    """T tokens of R rows, one after the other; row r's are query_starts[r] … query_starts[r + 1] - 1."""

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    lengths: Tensor  # int64 [T]; the length that length-dependent rotary scalings see
    attention: list[AttentionBatch]  # one per KV group
    last: np.ndarray  # int64 [R]; index of each row's last token in this step


def build_batch(
    rows: Rows, work: Sequence[RowWork], block_size: int, device: torch.device, begins: bool = True
) -> Batch:
    """`begins`: rows may have begun with this step, and see blocks that others fill in it."""
    row_ids = np.array([item.row for item in work], dtype=np.int64)
    starts = np.array([item.start for item in work], dtype=np.int64)
    counts = np.array([item.count for item in work], dtype=np.int64)
    query_starts = np.zeros(len(work) + 1, dtype=np.int64)
    np.cumsum(counts, out=query_starts[1:])

    token_rows = np.repeat(row_ids, counts)
    positions = np.arange(query_starts[-1]) - np.repeat(query_starts[:-1] - starts, counts)
    # The prompt's length counts from its first chunk on, so that chunks of any size see the same frequencies.
    lengths = np.maximum(rows.num_prompt_tokens[token_rows], positions + 1)

    num_single = int(np.argmax(counts != 1)) if (counts != 1).any() else len(counts)
    spans = tuple((item.count, item.start + item.count) for item in work[num_single:])
    context_lens = starts + counts
    num_blocks = -(-int(context_lens.max()) // block_size)

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    shared_query_starts = on_device(query_starts.astype(np.int32))
    shared_context_lens = on_device(context_lens.astype(np.int32))
    attention = []
    for table in rows.tables:
        slots = table[token_rows, positions // block_size].astype(np.int64) * block_size + positions % block_size
        attention.append(
            AttentionBatch(
                query_starts=shared_query_starts,
                context_lens=shared_context_lens,
                block_table=on_device(table[row_ids, :num_blocks]),
                slots=on_device(slots),
                num_single=num_single,
                is_decode=num_single == len(work) and not begins,
                spans=spans,
            )
        )
    tokens = on_device(rows.tokens[token_rows, positions])
    return Batch(
        tokens=rows.resolve(tokens) if rows.num_unknown else tokens,
        positions=on_device(positions),
        lengths=on_device(lengths),
        attention=attention,
        last=query_starts[1:] - 1,
    )
