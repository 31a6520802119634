"""Puts a step's keys and values into the paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal

TOLERANCE = 0.0


def reference(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """k, v [T, Hkv, D]; caches [num_blocks, block_size, Hkv, D]; slots int64 [T] = block * block_size + offset, or -1 for a
    row that only pads a recorded step, of which nothing is kept."""
    if not len(slots):
        return
    # Rows that pad write what the first real one writes: no look at the numbers, for which a device would have to be waited for.
    is_real = slots >= 0
    rows = torch.where(is_real, torch.arange(len(slots), device=slots.device), is_real.int().argmax())
    block_size = key_cache.shape[1]
    blocks, offsets = slots[rows] // block_size, slots[rows] % block_size
    key_cache[blocks, offsets] = k[rows].to(key_cache.dtype)
    value_cache[blocks, offsets] = v[rows].to(value_cache.dtype)


def cases(random: Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for tokens, num_kv, dim in [(0, 2, 64), (1, 3, 64), (17, 1, 80), (5, 4, 96)]:
            layers = normal(random, 4, 2, 8, num_kv, dim, dtype=dtype)  # block by block, keys beside values
            slots = torch.randperm(4 * 8, generator=random)[:tokens]
            k, v = normal(random, tokens, num_kv, dim), normal(random, tokens, num_kv, dim)
            yield Case(f"{dtype} {tokens}x{num_kv}x{dim}", (k, v, layers[:, 0], layers[:, 1], slots))
