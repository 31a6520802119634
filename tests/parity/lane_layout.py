"""Caches in the layout that the native kernels read, made of plain ones [num_blocks, block_size, num_heads, head_dim]."""

from torch import Tensor


def in_lanes(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Copies, in the shapes of kv_layout.LaneLayout."""
    pair = 4 // keys.element_size()
    by_head_keys, by_head_values = keys.permute(0, 2, 3, 1), values.permute(0, 2, 1, 3)
    return (
        by_head_keys.unflatten(2, (-1, pair)).transpose(3, 4).contiguous(),
        by_head_values.unflatten(2, (-1, pair)).transpose(3, 4).contiguous(),
    )


def plain_keys(keys: Tensor) -> Tensor:
    return keys.transpose(3, 4).flatten(2, 3).permute(0, 3, 1, 2)


def plain_values(values: Tensor) -> Tensor:
    return values.transpose(3, 4).flatten(2, 3).permute(0, 2, 1, 3)
