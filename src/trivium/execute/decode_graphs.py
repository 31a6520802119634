"""Steps in which every row decodes, captured on the device for a few numbers of rows and replayed.

What such a step needs to know is put into one piece of memory and sent in one copy; a step with fewer rows than were
captured is filled up with rows that see nothing and write nothing.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from trivium.execute.rows import Rows
from trivium.execute.send import copies_by_itself
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.ops import Capture
from trivium.kernels.sample import SampleBatch
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.types.step import RowWork

log = logging.getLogger(__name__)

# A copy may still wait for the device when the next step is written: one step runs, one waits.
INPUTS_IN_FLIGHT = 3


def captured_sizes(max_rows: int) -> list[int]:
    """Close together where steps are short, so that little is computed for nothing."""
    sizes = [1, 2, 4, 8, *range(16, 257, 8), *range(288, 513, 32), *range(576, 1025, 64)]
    return [size for size in sizes if size < max_rows] + ([max_rows] if max_rows <= sizes[-1] else [])


@dataclass(frozen=True)
class Columns:
    """A step's inputs as parts of one int32 array. R rows, G groups of layers."""

    tokens: slice
    positions: slice
    lengths: slice
    contexts: slice
    slots: slice  # [G, R]
    tables: slice  # [max_blocks, G, R]: what short contexts use lies in front

    @classmethod
    def of(cls, num_rows: int, num_groups: int, max_blocks: int) -> Columns:
        sizes = [num_rows] * 4 + [num_groups * num_rows, max_blocks * num_groups * num_rows]
        ends = np.cumsum(sizes).tolist()
        return cls(*(slice(end - size, end) for size, end in zip(sizes, ends, strict=True)))


@dataclass(frozen=True)
class Decoded:
    """What a captured step found, to be read before the next one is replayed."""

    logits: Tensor  # [R, V]
    likeliest: (
        Tensor  # int64 [R]: tokens as `sample` takes them where nothing is asked for; `drawn` of the rows has them
    )


class DecodeGraphs:
    def __init__(self, model: Decoder, kv: KVCache, rows: Rows, capture: Capture, device: torch.device) -> None:
        self._model = model
        self._kv = kv
        self._rows = rows
        self._num_groups, self._max_blocks = len(rows.tables), rows.tables[0].shape[1]
        sizes = captured_sizes(max_rows=len(rows.tokens))
        self._columns = {size: Columns.of(size, self._num_groups, self._max_blocks) for size in sizes}
        room = self._columns[sizes[-1]].tables.stop
        self._inputs = torch.zeros(room, dtype=torch.int32, device=device)
        pinned = copies_by_itself(device)
        self._staged = [torch.zeros(room, dtype=torch.int32, pin_memory=pinned) for _ in range(INPUTS_IN_FLIGHT)]
        self._turn = 0
        self._starts = torch.arange(sizes[-1] + 1, dtype=torch.int32, device=device)
        self._logits = torch.empty((sizes[-1], model.spec.vocab_size), dtype=model.dtype, device=device)
        self._likeliest: dict[int, Tensor] = {}  # by the number of rows that was captured
        self._replays: dict[int, Callable[[], None]] = {}
        self.why_fewer = ""
        self._capture_all(capture, sizes)
        self.sizes = sorted(self._replays)

    def size_for(self, num_rows: int) -> int | None:
        place = bisect_left(self.sizes, num_rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def decode(self, work: Sequence[RowWork], size: int) -> Decoded:
        """One new token of each row."""
        self._send(work, size)
        self._replays[size]()
        return Decoded(self._logits[: len(work)], self._likeliest[size][: len(work)])

    @torch.inference_mode()
    def _capture_all(self, capture: Capture, sizes: Sequence[int]) -> None:
        """The largest first, whose memory serves the others too."""
        # Run before it is captured, so that nothing is prepared for the first time within; layers of a kind prepare the same.
        rehearsal = self._model.with_layers(self._model.spec.num_layers_of_all_kinds)
        for size in reversed(sizes):

            def step(model: Decoder, size: int = size) -> None:
                logits = self._compute(model, size)
                self._likeliest[size] = self._model.ops.sample(logits, SampleBatch())
                self._rows.put_drawn(self._likeliest[size])

            try:
                step(rehearsal)
                self._replays[size] = capture(partial(step, self._model))
            except torch.OutOfMemoryError as error:
                numbers = str(error).partition(" Including")[0]  # what was asked for, what is free, who holds the rest
                self.why_fewer = f"no memory to capture steps of {size} rows: {numbers}"
                log.warning("%s", self.why_fewer)
            except RuntimeError as error:  # streams, handles: what else a vendor counts
                what, _, _advice = str(error).partition("\n")
                self.why_fewer = f"steps of {size} rows could not be captured: {what}"
                log.warning("%s", self.why_fewer)

    def _compute(self, model: Decoder, size: int) -> Tensor:
        columns = self._columns[size]
        contexts = self._inputs[columns.contexts]
        tables = self._inputs[columns.tables].view(self._max_blocks, self._num_groups, size)
        slots = self._inputs[columns.slots].view(self._num_groups, size)
        attention = [
            AttentionBatch(
                self._starts[: size + 1], contexts, tables[:, group].T, slots[group], num_single=size, is_decode=True
            )
            for group in range(self._num_groups)
        ]
        tokens, lengths = self._inputs[columns.tokens], self._inputs[columns.lengths]
        positions = self._inputs[columns.positions].long()  # once, and not for each table that they index
        hidden = model.forward(self._rows.resolve(tokens), positions, lengths, attention, self._kv)
        return model.logits(hidden, out=self._logits[:size])

    def _send(self, work: Sequence[RowWork], size: int) -> None:
        rows = self._rows
        self._turn = (self._turn + 1) % INPUTS_IN_FLIGHT
        staged = self._staged[self._turn]
        columns = self._columns[size]
        inputs, count = staged.numpy(), len(work)
        row_ids = np.fromiter((item.row for item in work), dtype=np.int64, count=count)
        positions = np.fromiter((item.start for item in work), dtype=np.int64, count=count)

        def fill(part: slice, values: np.ndarray, padding: int) -> None:
            inputs[part][:count] = values
            inputs[part][count:] = padding

        block_size = self._kv.spec.block_size
        blocks, offsets = positions // block_size, positions % block_size
        fill(columns.tokens, rows.tokens[row_ids, positions], 0)
        fill(columns.positions, positions, 0)
        fill(columns.lengths, np.maximum(rows.num_prompt_tokens[row_ids], positions + 1), 1)
        fill(columns.contexts, positions + 1, 0)
        used = int(blocks.max()) + 1
        slots = inputs[columns.slots].reshape(self._num_groups, size)
        tables = inputs[columns.tables].reshape(self._max_blocks, self._num_groups, size)
        for group, table in enumerate(rows.tables):
            slots[group, :count] = table[row_ids, blocks] * block_size + offsets
            slots[group, count:] = -1
            tables[:used, group, :count] = table[row_ids, :used].T
        sent = columns.tables.start + used * self._num_groups * size
        self._inputs[:sent].copy_(staged[:sent], non_blocking=True)
