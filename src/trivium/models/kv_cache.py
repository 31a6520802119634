"""Keys and values of all layers, in one pool of equal blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.kernels.kv_layout import KVLayout
from trivium.models.pages_ahead import PagesAhead
from trivium.types.kv import KVSpec


@dataclass(frozen=True)
class LayerKV:
    keys: Tensor  # as the layout gives them to the ops
    values: Tensor
    group: int  # whose block table this layer reads


class KVCache:
    """Block b holds `block_size` tokens of every layer of the one group that has it.

    The n-th layers of all groups therefore share one tensor, and a group writes only in the blocks it was given.
    """

    def __init__(self, spec: KVSpec, num_blocks: int, layout: KVLayout, device: torch.device | str) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        # Zeros, since what a masked key holds is multiplied by 0, and 0 * nan is nan.
        # [layer of a group, keys or values, block, elements of a block]
        dtype = getattr(torch, spec.dtype)
        per_block = spec.num_kv_heads * spec.block_size * spec.bytes_per_head // dtype.itemsize
        self._pool = _zeros(spec.layers_per_group, num_blocks, per_block, dtype, torch.device(device))
        # On the CPU the pool lies block by block.
        self._pages = PagesAhead(self._pool.permute(2, 0, 1, 3)) if self._pool.device.type == "cpu" else None
        sizes = (spec.num_kv_heads, spec.block_size, spec.head_dim)
        self._layers = {
            layer: LayerKV(
                layout.keys(self._pool[place, 0], *sizes), layout.values(self._pool[place, 1], *sizes), index
            )
            for index, group in enumerate(spec.groups)
            for place, layer in enumerate(group.layers)
        }

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def layer(self, index: int) -> LayerKV:
        return self._layers[index]

    def fetch_pages(self, num_blocks: int) -> bool:
        """Some of the memory of the first `num_blocks` comes before it is written to; False where all has."""
        return self._pages is not None and self._pages.fetch(num_blocks * self.spec.bytes_per_block)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Each pair is (source, destination); all sources are read before any destination is written."""
        if pairs:
            sources, destinations = torch.tensor(pairs).to(self._pool.device, non_blocking=True).unbind(dim=1)
            self._pool[:, :, destinations] = self._pool[:, :, sources]


def _zeros(num_layers: int, num_blocks: int, per_block: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[num_layers, 2, num_blocks, per_block]

    On the CPU from calloc, which gives pages that cost nothing until they are written; torch would write them all. And
    block by block, with all its layers: what a short sequence writes then lies in few pages, which may be of 2 MiB.
    """
    if device.type != "cpu":
        return torch.zeros((num_layers, 2, num_blocks, per_block), dtype=dtype, device=device)
    shape = (num_blocks, num_layers, 2, per_block)
    memory = torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8))
    return memory.view(dtype).view(shape).permute(1, 2, 0, 3)
