"""Per-request device state that persists between steps. A step changes a few rows; a batch is read out of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trivium.types.kv import KVSpec
from trivium.types.step import RowStart, TableUpdate

OUT_OF_WINDOW = -1


class Rows:
    """Columns over rows. A row that no sequence holds keeps stale values; nothing reads them.

    A token that a step has drawn may be known to the device only. In `tokens` then stands -1 - i: it is the i-th of
    those that the last step drew, which are in `drawn`.
    """

    def __init__(self, max_rows: int, max_model_len: int, kv: KVSpec, device: torch.device) -> None:
        max_blocks = -(-max_model_len // kv.block_size)
        # One more than the longest: the token sampled at the last position is kept, though it is never computed.
        self.tokens = np.empty((max_rows, max_model_len + 1), dtype=np.int64)
        self.num_tokens = np.zeros(max_rows, dtype=np.int64)
        self.num_prompt_tokens = np.zeros(max_rows, dtype=np.int64)
        self.tables = [np.full((max_rows, max_blocks), OUT_OF_WINDOW, dtype=np.int32) for _ in kv.groups]
        self.held: set[int] = set()
        self.drawn = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self.num_unknown = 0  # tokens that only the device knows

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + sum(table.nbytes for table in self.tables)

    def start(self, start: RowStart) -> None:
        row, count = start.row, len(start.tokens)
        self.tokens[row, :count] = start.tokens
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = start.num_prompt_tokens
        self.held.add(row)

    def end(self, row: int) -> None:
        self.held.remove(row)

    def update_tables(self, row: int, updates: Sequence[TableUpdate]) -> None:
        for update in updates:
            self.tables[update.group][row, update.first : update.first + len(update.blocks)] = update.blocks

    def put_drawn(self, chosen: Tensor) -> None:
        """int64 [M], negative where a row failed; it goes on with some token until the host hears of that."""
        torch.clamp(chosen, min=0, out=self.drawn[: len(chosen)])

    def expect(self, rows: np.ndarray) -> np.ndarray:
        """Appends to each of some rows, int64 [M], its token of `drawn`, in their order. Returns where it stands."""
        count = len(rows)
        places: np.ndarray = self.num_tokens[rows]
        self.tokens[rows, places] = -1 - np.arange(count)
        self.num_tokens[rows] += 1
        self.num_unknown += count
        return places

    def learn(self, rows: np.ndarray, places: np.ndarray, tokens: np.ndarray) -> None:
        """What was expected."""
        self.tokens[rows, places] = tokens
        self.num_unknown -= len(rows)

    def resolve(self, tokens: Tensor) -> Tensor:
        """Tokens as they stand in the rows, on the device -> int64, with those filled in that only it knows."""
        return torch.where(tokens < 0, self.drawn[(-1 - tokens).clamp(min=0)], tokens)

    def tokens_of(self, row: int) -> np.ndarray:
        return self.tokens[row, : self.num_tokens[row]]
