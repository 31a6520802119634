"""Memory of the cache comes before it is written to, from its beginning on, and nothing in it changes by that."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from torch import Tensor

from trivium.kernels.large_pages import PAGE_BYTES
from trivium.kernels.select import reference_ops
from trivium.models.kv_cache import KVCache
from trivium.models.pages_ahead import MADV_POPULATE_WRITE, PagesAhead
from trivium.types.kv import KVGroup, KVSpec

libc = ctypes.CDLL(None)


def can_fetch() -> bool:
    memory = torch.zeros(PAGE_BYTES, dtype=torch.uint8)
    first = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    return libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(mmap.PAGESIZE), MADV_POPULATE_WRITE) == 0


pytestmark = pytest.mark.skipif(not can_fetch(), reason="the system gives no pages ahead (Linux before 5.14)")


def fresh_memory(num_pieces: int) -> Tensor:
    """Zeros that begin where a piece does, and none of whose pages is there."""
    whole = torch.frombuffer(mmap.mmap(-1, (num_pieces + 1) * PAGE_BYTES), dtype=torch.uint8)
    return whole[-whole.data_ptr() % PAGE_BYTES :][: num_pieces * PAGE_BYTES]


def num_present(memory: Tensor) -> int:
    """Of its pieces."""
    pages = memory.nbytes // mmap.PAGESIZE
    is_present = (ctypes.c_ubyte * pages)()
    assert libc.mincore(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes), is_present) == 0
    return sum(page & 1 for page in is_present) * mmap.PAGESIZE // PAGE_BYTES


def test_pages_come_one_piece_at_a_time_as_far_as_they_are_wanted() -> None:
    memory = fresh_memory(4)
    pages = PagesAhead(memory)
    assert num_present(memory) == 0
    assert pages.fetch(2 * PAGE_BYTES) and num_present(memory) == 1
    assert pages.fetch(2 * PAGE_BYTES) and num_present(memory) == 2
    assert not pages.fetch(2 * PAGE_BYTES) and num_present(memory) == 2
    while pages.fetch(100 * PAGE_BYTES):
        pass
    assert num_present(memory) == 4


def test_what_is_in_the_memory_stays() -> None:
    memory = fresh_memory(2)
    memory[5], memory[PAGE_BYTES + 7] = 11, 12
    pages = PagesAhead(memory)
    while pages.fetch(memory.nbytes):
        pass
    assert memory[5] == 11 and memory[PAGE_BYTES + 7] == 12 and int(memory.sum()) == 23


def test_memory_that_cannot_be_had_is_tried_once() -> None:
    memory = fresh_memory(2)
    assert libc.mprotect(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes), mmap.PROT_READ) == 0
    pages = PagesAhead(memory)
    assert pages.fetch(memory.nbytes)
    assert not pages.fetch(memory.nbytes) and num_present(memory) == 0


def test_a_caches_first_blocks_come_first() -> None:
    spec = KVSpec(block_size=16, groups=(KVGroup((0, 1)),), num_kv_heads=4, head_dim=64, dtype="bfloat16")
    cache = KVCache(spec, 8 * PAGE_BYTES // spec.bytes_per_block, reference_ops("the oracle").kv_layout, "cpu")
    blocks = 4 * PAGE_BYTES // spec.bytes_per_block
    count = 0
    while cache.fetch_pages(blocks):
        count += 1
    assert 3 <= count <= 4  # whole pieces that begin within the memory
    assert not cache.fetch_pages(blocks // 2)
