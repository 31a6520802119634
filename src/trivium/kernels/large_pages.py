"""Memory for packed weights, on large pages where the system gives them.

A processor reads ahead only to the end of a page, and looks up each page's place: single rows of activations, which read
every weight once, are up to twice as fast from pages of 2 MiB as from those of 4 KiB. Files are mapped in small pages, so
that weights kept on disk are copied here.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path

import torch
from torch import Tensor

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PAGE_BYTES = 2 << 20
CHUNK_BYTES = 64 << 20  # asked of the system at once; what is not written to takes no memory
ALIGNMENT = 64


def are_offered() -> bool:
    """Whether the system gives large pages to those who ask."""
    try:
        return hasattr(mmap, "MADV_HUGEPAGE") and "[never]" not in SETTING.read_text()
    except OSError:
        return False


class LargePages:
    """One weight after another, so that small ones share a page. A chunk goes when the last weight in it does."""

    def __init__(self) -> None:
        self.are_offered = are_offered()
        self._rest = torch.empty(0, dtype=torch.uint8)  # of the newest chunk

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """uint8 of that shape."""
        if not self.are_offered:
            return torch.empty(shape, dtype=torch.uint8)
        nbytes = math.prod(shape)
        if nbytes > len(self._rest):
            self._rest = _chunk(max(CHUNK_BYTES, nbytes))
        taken = self._rest[:nbytes]
        self._rest = self._rest[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
        return taken.view(shape)

    def hold(self, mapped: Tensor) -> Tensor:
        """The same bytes: a copy on large pages, or where there are none the tensor itself."""
        return self.empty(tuple(mapped.shape)).copy_(mapped) if self.are_offered else mapped


def _chunk(nbytes: int) -> Tensor:
    """Zeros that begin where a large page does."""
    memory = mmap.mmap(-1, nbytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % PAGE_BYTES :][:nbytes]
