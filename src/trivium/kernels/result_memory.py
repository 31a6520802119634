"""Memory for a large result that every step makes anew: it is kept, and given out again when the last result is gone.

The allocator would either map pages for each one, which then are cleared and counted each time, or hold several of them.
"""

from __future__ import annotations

import math
import mmap
import weakref

import numpy as np
import torch
from torch import Tensor

SMALLEST_BYTES = 128 << 10  # less stays with the allocator, as glibc's does by default
PAGE_BYTES, LINE_BYTES = 4096, 64


class ResultMemory:
    """Of one result at a time; a second that is asked for while the first lives gets memory of its own."""

    def __init__(self) -> None:
        self._kept = np.empty(0, dtype=np.float32)
        self._lent: weakref.ref[np.ndarray] | None = None

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """float32 of that shape; the rows of a matrix need not lie densely."""
        if len(shape) == 2:
            num_rows, num_columns = shape
            return self._dense((num_rows, _row_stride(num_columns)))[:, :num_columns]
        return self._dense(shape)

    def _dense(self, shape: tuple[int, ...]) -> Tensor:
        count = math.prod(shape)
        if count * 4 < SMALLEST_BYTES or (self._lent is not None and self._lent() is not None):
            return torch.empty(shape, dtype=torch.float32)
        if count > len(self._kept):
            # Twice as much as is asked for: pages that are never written to take no memory.
            pages = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._kept = np.frombuffer(pages, dtype=np.float32)
        lent = self._kept[:count]
        self._lent = weakref.ref(lent)  # which lives as long as any tensor that shares its memory
        return torch.from_numpy(lent).view(shape)


def _row_stride(num_columns: int) -> int:
    """Rows that lie whole pages apart meet in the same few places of a cache, and drive each other out while a matrix is
    written some columns at a time."""
    return num_columns + LINE_BYTES // 4 if num_columns * 4 % PAGE_BYTES == 0 else num_columns
