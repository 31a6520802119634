"""The input of one step, built from the rows and thrown away after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.execute.rows import Rows
from trivium.execute.send import send
from trivium.kernels.attention import AttentionBatch
from trivium.types.step import RowWork


@dataclass(frozen=True)
class Batch:
    """T tokens of R rows, one after the other; row r's are query_starts[r] … query_starts[r + 1] - 1."""

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    lengths: Tensor  # int64 [T]; the length that length-dependent rotary scalings see
    attention: list[AttentionBatch]  # one per KV group
    last: Tensor  # int64 [M]; index of the last token in this step of each row that samples


def build_batch(
    rows: Rows, work: Sequence[RowWork], block_size: int, device: torch.device, begins: bool = True
) -> Batch:
    """`begins`: rows may have begun with this step, and see blocks that others fill in it."""
    row_ids = np.array([item.row for item in work], dtype=np.int64)
    starts = np.array([item.start for item in work], dtype=np.int64)
    num_single = next((place for place, item in enumerate(work) if item.count != 1), len(work))
    query_starts = np.arange(len(work) + 1)
    if num_single == len(work):
        token_rows, positions, context_lens = row_ids, starts, starts + 1
    else:
        counts = np.array([item.count for item in work], dtype=np.int64)
        np.cumsum(counts, out=query_starts[1:])
        token_rows = np.repeat(row_ids, counts)
        positions = np.arange(query_starts[-1]) - np.repeat(query_starts[:-1] - starts, counts)
        context_lens = starts + counts
    # The prompt's length counts from its first chunk on, so that chunks of any size see the same frequencies.
    lengths = np.maximum(rows.num_prompt_tokens[token_rows], positions + 1)
    spans = tuple((item.count, item.start + item.count) for item in work[num_single:])
    num_blocks = -(-max(item.start + item.count for item in work) // block_size)

    block_indices, places = np.divmod(positions, block_size)
    slots = [table[token_rows, block_indices].astype(np.int64) * block_size + places for table in rows.tables]
    sampling = [place for place, item in enumerate(work) if item.samples]
    ends = query_starts[1:] if len(sampling) == len(work) else query_starts[1:][sampling]
    shared = [
        rows.tokens[token_rows, positions],
        positions,
        lengths,
        ends - 1,
        query_starts.astype(np.int32),
        context_lens.astype(np.int32),
    ]
    tables = [table[row_ids, :num_blocks] for table in rows.tables]
    sent = iter(send([*shared, *slots, *tables], device))
    tokens, positions_there, lengths_there, last, starts_there, contexts_there = (next(sent) for _ in shared)
    slots_there = [next(sent) for _ in slots]
    attention = [
        AttentionBatch(
            query_starts=starts_there,
            context_lens=contexts_there,
            block_table=table,
            slots=group_slots,
            num_single=num_single,
            is_decode=num_single == len(work) and not begins,
            spans=spans,
        )
        for group_slots, table in zip(slots_there, sent, strict=True)
    ]
    return Batch(
        tokens=rows.resolve(tokens) if rows.num_unknown else tokens,
        positions=positions_there,
        lengths=lengths_there,
        attention=attention,
        last=last,
    )
