"""How the keys and values of a block lie in memory. Whoever provides the attention ops says which layout they read.

Blocks are moved and copied whole, whatever is in them; only `write_kv` and `paged_attention` look inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trivium.types.kv import BYTES_PER_ELEMENT, INT8_SCALE_BYTES


class KVLayout(Protocol):
    def dtypes(self, activations: str, block_size: int, head_dim: int) -> tuple[str, ...]:
        """Of what such blocks may be, for activations of that dtype; the best first."""

    def keys(self, blocks: Tensor, num_heads: int, block_size: int, head_dim: int) -> Tensor:
        """Blocks [num_blocks, elements of a block], seen as the ops take a layer's keys."""

    def values(self, blocks: Tensor, num_heads: int, block_size: int, head_dim: int) -> Tensor: ...


@dataclass(frozen=True)
class PlainLayout:
    """Keys and values are [num_blocks, block_size, num_heads, head_dim], a view; what one head reads lies together."""

    def dtypes(self, activations: str, block_size: int, head_dim: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys((activations, *BYTES_PER_ELEMENT)))

    def keys(self, blocks: Tensor, num_heads: int, block_size: int, head_dim: int) -> Tensor:
        return blocks.view(-1, num_heads, block_size, head_dim).transpose(1, 2)

    values = keys


@dataclass(frozen=True)
class LaneLayout:
    """What the lanes of a vector take at once lies together, in words of 4 bytes: a float32, a pair of bfloat16 or four int8.

    Keys are [num_blocks, num_heads, head_dim / pair, block_size, pair], with a word's elements of neighbouring dimensions;
    values are [num_blocks, num_heads, block_size / pair, head_dim, pair], of neighbouring tokens. In int8 both are
    [num_blocks, num_heads, block_size, head_dim + 4], whose bytes are the tokens' scales and then words of four elements.
    """

    reads_bytes_fastest: bool = False

    def dtypes(self, activations: str, block_size: int, head_dim: int) -> tuple[str, ...]:
        in_pairs, in_fours = (block_size % size == 0 and head_dim % size == 0 for size in (2, 4))
        if not in_fours:
            return ("bfloat16", "float32") if in_pairs else ("float32",)
        return ("int8", "bfloat16", "float32") if self.reads_bytes_fastest else ("bfloat16", "float32", "int8")

    def keys(self, blocks: Tensor, num_heads: int, block_size: int, head_dim: int) -> Tensor:
        if blocks.dtype == torch.int8:
            return blocks.view(-1, num_heads, block_size, head_dim + INT8_SCALE_BYTES)
        pair = 4 // blocks.element_size()
        return blocks.view(-1, num_heads, head_dim // pair, block_size, pair)

    def values(self, blocks: Tensor, num_heads: int, block_size: int, head_dim: int) -> Tensor:
        if blocks.dtype == torch.int8:
            return self.keys(blocks, num_heads, block_size, head_dim)
        pair = 4 // blocks.element_size()
        return blocks.view(-1, num_heads, block_size // pair, head_dim, pair)
