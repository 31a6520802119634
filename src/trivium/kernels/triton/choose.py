"""How the kernels cut their work, by the shape of it. Numbers were measured on an H200 (`make bench-gpu`)."""

from __future__ import annotations

from trivium.kernels.triton.decode_attention import DecodeTiles
from trivium.kernels.triton.experts import GroupedTiles, StreamTiles
from trivium.kernels.triton.ordered_linear import OrderedTiles
from trivium.kernels.triton.prefill_attention import PrefillTiles
from trivium.kernels.triton.prompt_attention import PromptTiles
from trivium.kernels.triton.skinny_linear import SkinnyTiles
from trivium.kernels.triton.sorted_experts import SortedTiles

FEW_ROWS = 16  # which a tile of the tensor cores has anyway
MAX_SPLITS = 32
MOST_SPLIT_HEADS = 2  # heads of rows for each processor; of more, their number alone keeps all busy
STREAMED_EXPERT_TOKENS = 2  # up to this many tokens each pair streams its expert's weights by itself


def skinny_tiles(
    num_rows: int, num_out: int, num_in: int, *, is_gated: bool = False, is_normed: bool = False
) -> SkinnyTiles | None:
    """None: the library's product is the better one, which it is where several rows share the weights, with exceptions.

    `num_out`: of results; `is_normed`: the layer norms its inputs itself, which takes rows of several too long.
    """
    if num_rows > FEW_ROWS or (num_rows > 1 and (is_normed or is_gated)):
        return None
    if num_rows > 1:
        if num_out > 65536:
            return SkinnyTiles(32, 256, 4, 4, fetches_early=False)
        return SkinnyTiles(16, 256, 4, 5) if num_out * num_in <= 1 << 21 else None
    if is_gated:
        return SkinnyTiles(2, 2048, 8, 1, fetches_early=False) if num_in >= 3072 else SkinnyTiles(4, 512, 4, 3)
    if num_in > 8192:
        return SkinnyTiles(8, 1024, 4, 2)
    return SkinnyTiles(4, 2048, 8, 1) if num_in >= 3072 else SkinnyTiles(4, 1024, 4, 2)


def decode_tiles(num_rows: int, num_kv_heads: int, head_dim: int, most_keys: int, num_processors: int) -> DecodeTiles:
    """`most_keys`: no row has more."""
    keys = 64 if head_dim <= 128 else 32
    wanted = 2 * MOST_SPLIT_HEADS * num_processors // max(1, num_rows * num_kv_heads)
    wanted = max(1, min(MAX_SPLITS, wanted, most_keys // keys))
    splits = 1 << (wanted.bit_length() - 1)  # few different numbers, as each is compiled
    return DecodeTiles(keys=keys, splits=splits, warps=4, stages=3)


def prefill_tiles(head_dim: int, element_bytes: int) -> PrefillTiles:
    if element_bytes > 2:
        return PrefillTiles(queries=32, keys=32, warps=4, stages=1)
    if head_dim > 128:
        return PrefillTiles(queries=64, keys=32, warps=4, stages=2)
    return PrefillTiles(queries=128, keys=64, warps=4, stages=3)


def prompt_tiles(num_tokens: int) -> PromptTiles | None:
    """None: so few tokens of new prompts that they are no work of their own."""
    return PromptTiles(queries=64, keys=64, warps=4, stages=3) if num_tokens >= 512 else None


def stream_tiles() -> tuple[StreamTiles, StreamTiles]:
    """Of gate and up, and of down, up to STREAMED_EXPERT_TOKENS."""
    return StreamTiles(outputs=2, inputs=2048, warps=4, stages=1), StreamTiles(outputs=4, inputs=256, warps=2, stages=3)


def stream_down_tiles(num_tokens: int) -> StreamTiles | None:
    """Behind a product of sorted tiles. None: so many tokens share experts that down has to be sorted as well."""
    return StreamTiles(outputs=8, inputs=256, warps=4, stages=3) if num_tokens <= 8 else None


def sorted_tiles(num_pairs: int, num_experts: int, element_bytes: int) -> tuple[SortedTiles, SortedTiles] | None:
    """Of gate and up, and of down. None: not made for such numbers."""
    if element_bytes != 2:
        return None
    per_expert = num_pairs / num_experts
    if per_expert <= 10:
        return (
            SortedTiles(rows=16, outputs=64, inputs=128, warps=4, stages=3, group=8, programs=0, swaps=True),
            SortedTiles(rows=16, outputs=128, inputs=128, warps=4, stages=3, group=8, programs=2, swaps=True),
        )
    if per_expert <= 24:
        return (
            SortedTiles(rows=32, outputs=64, inputs=128, warps=4, stages=3, group=8, programs=2),
            SortedTiles(rows=32, outputs=128, inputs=64, warps=4, stages=4, group=8, programs=2, swaps=True),
        )
    if per_expert <= 80:
        return (
            SortedTiles(rows=64, outputs=64, inputs=64, warps=4, stages=4, group=8, programs=0),
            SortedTiles(rows=64, outputs=128, inputs=64, warps=4, stages=4, group=8, programs=2),
        )
    return (
        SortedTiles(rows=128, outputs=128, inputs=64, warps=8, stages=4, group=16, programs=0),
        SortedTiles(rows=128, outputs=256, inputs=64, warps=8, stages=4, group=16, programs=1),
    )


# Of a deterministic engine: by the model alone, never by the number of rows or tokens.


def ordered_tiles(num_out: int, element_bytes: int) -> OrderedTiles:
    """Narrow where a weight has few outputs: few programs would leave much of the card idle when few rows decode."""
    if element_bytes > 2:
        return OrderedTiles(rows=16, outputs=32, inputs=32, warps=4, stages=2)
    if num_out <= 8192:
        return OrderedTiles(rows=64, outputs=64, inputs=128, warps=4, stages=3)
    return OrderedTiles(rows=64, outputs=128, inputs=64, warps=4, stages=4)


def ordered_attention_tiles(head_dim: int, element_bytes: int) -> PrefillTiles:
    if element_bytes > 2:
        return PrefillTiles(queries=32, keys=32, warps=4, stages=1, in_order=True)
    if head_dim > 128:
        return PrefillTiles(queries=64, keys=32, warps=4, stages=2, in_order=True)
    return PrefillTiles(queries=64, keys=64, warps=4, stages=3, in_order=True)


def grouped_tiles(element_bytes: int) -> tuple[GroupedTiles, GroupedTiles]:
    """Of gate and up, and of down. Of any engine where `sorted_tiles` do not do."""
    if element_bytes > 2:
        small = GroupedTiles(rows=16, outputs=32, inputs=32, warps=4, stages=2)
        return small, small
    return GroupedTiles(64, 64, 64, 4, 3), GroupedTiles(64, 128, 64, 4, 4)
