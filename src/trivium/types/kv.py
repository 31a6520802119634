"""The shape of the key/value cache, as numbers that the scheduler and the device agree on.

All blocks of one engine are of one size, so that there is one pool and one ledger. Layers are put into groups of
equal size; a block of a group holds `block_size` tokens of all its layers. Layers of one group share one window,
hence one block table: a sliding group gives back blocks that it can no longer see, a full group keeps all.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}
INT8_SCALE_BYTES = 4  # each token's head of an int8 cache has a scale


class KVGroup(Struct, frozen=True):
    layers: tuple[int, ...]
    window: int | None = None  # a query at position p sees keys p - window + 1 … p; None sees all


class KVSpec(Struct, frozen=True):
    block_size: int  # tokens
    groups: tuple[KVGroup, ...]
    num_kv_heads: int
    head_dim: int
    dtype: str  # one of BYTES_PER_ELEMENT, or int8

    @property
    def layers_per_group(self) -> int:
        return max(len(group.layers) for group in self.groups)

    @property
    def bytes_per_head(self) -> int:
        """Of one head's key, or value, of one token."""
        if self.dtype == "int8":
            return self.head_dim + INT8_SCALE_BYTES
        return self.head_dim * BYTES_PER_ELEMENT[self.dtype]

    @property
    def bytes_per_block(self) -> int:
        """Of keys and values of all layers of one group; slots that pad a short group count, they are allocated."""
        return 2 * self.num_kv_heads * self.bytes_per_head * self.block_size * self.layers_per_group


def group_layers(windows: Sequence[int | None]) -> tuple[KVGroup, ...]:
    """Groups of equal size from each layer's window (None: full attention), so that one block size serves all.

    The smallest kind sets the size of a group: Gemma 3's 15 sliding and 3 full layers become 5 + 1 groups of 3.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in kinds.values())
    return tuple(
        KVGroup(layers=tuple(layers[i : i + size]), window=window)
        for window, layers in kinds.items()
        for i in range(0, len(layers), size)
    )


def blocks_needed(groups: Sequence[KVGroup], block_size: int, num_tokens: int, max_chunk: int) -> int:
    """Most blocks that one sequence holds at any time on its way to `num_tokens`, computed `max_chunk` at a time.

    A sliding group holds what the oldest query of a chunk still sees and the chunk itself; the span may begin inside
    a block, hence one more.
    """
    whole = -(-num_tokens // block_size)
    return sum(
        whole if group.window is None else min(whole, -(-(group.window - 1 + max_chunk) // block_size) + 1)
        for group in groups
    )


def row_bytes(groups: Sequence[KVGroup], block_size: int, max_rows: int, max_model_len: int) -> int:
    """Of what the engine keeps for each row beside its blocks: its tokens (8 bytes) and block numbers (4 bytes)."""
    return max_rows * (8 * (max_model_len + 1) + 4 * -(-max_model_len // block_size) * len(groups))
