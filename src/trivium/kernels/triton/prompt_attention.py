"""Attention of whole prompts: rows whose keys are all of this step, and lie together in it.

A program has a tile of one row's tokens and one query head. Tiles come by the copy engine; of the rows that share a
tile with others, only the last tile of keys and the stores look where the row ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from trivium.kernels.attention import HeadRules
from trivium.kernels.triton.prefill_attention import LOG2_E, row_of


@dataclass(frozen=True)
class PromptTiles:
    queries: int
    keys: int  # divides queries
    warps: int
    stages: int


@triton.jit
def _attend_prompt(
    query, mixed, highest, total, k, v, start, column, positions, begin, end, factor,
    MASKED: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Keys begin … end - 1 of the row that begins at token `start`. Without MASKED all queries see all of them."""
    lane = tl.arange(0, TILE)
    for first in tl.range(begin, end, TILE, num_stages=STAGES):
        key = k.load([start + first, column])
        score = tl.dot(query, key.T)
        value = v.load([start + first, column])
        if MASKED:
            score = tl.where(first + lane[None, :] <= positions[:, None], score, float("-inf"))
            # Behind the row's end lie others' values, which may be no numbers.
            value = tl.where((first + lane < end)[:, None], value, 0.0).to(value.dtype)
        new_highest = tl.maximum(highest, tl.max(score, axis=1) * factor)
        weight = tl.exp2(score * factor - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weight, axis=1)
        mixed = tl.dot(weight.to(value.dtype), value, mixed * shrink[:, None])
        highest = new_highest
    return mixed, highest, total


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["starts"])
def _prompts(
    q, k, v, starts, num_rows, out, factor,
    NUM_Q: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    # The last tiles of a row see the most keys: they go first. Heads that share keys run beside each other.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0)
    row = row_of(starts, num_rows, tile, BLOCK_M)
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    first = (tile - (start // BLOCK_M + row)) * BLOCK_M  # token of the row
    if (first >= 0) & (first < count):
        column = head // GROUP * SIZE
        positions = first + tl.arange(0, BLOCK_M)
        query = q.load([start + first, head * SIZE])
        highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        mixed = tl.zeros((BLOCK_M, SIZE), tl.float32)
        mixed, highest, total = _attend_prompt(
            query, mixed, highest, total, k, v, start, column, positions, 0, first, factor, False, TILE, STAGES
        )  # fmt: skip
        end = tl.minimum(first + BLOCK_M, count)
        mixed, highest, total = _attend_prompt(
            query, mixed, highest, total, k, v, start, column, positions, first, end, factor, True, TILE, STAGES
        )  # fmt: skip
        result = (mixed / total[:, None]).to(out.dtype.element_ty)
        place = (start + positions).to(tl.int64)[:, None] * (NUM_Q * SIZE) + head * SIZE + tl.arange(0, SIZE)[None, :]
        tl.store(out + place, result, mask=(positions < count)[:, None])


def takes_prompts(q: Tensor, k: Tensor, v: Tensor, rules: HeadRules) -> bool:
    """Whether the kernel is made for such heads, and the copy engine can read them."""
    is_16_bit = q.dtype == k.dtype == v.dtype and q.element_size() == 2
    lies_well = all(x.data_ptr() % 16 == 0 and x.stride(0) % 8 == 0 and x.stride(1) == 1 for x in (q, k, v))
    return is_16_bit and lies_well and rules.head_dim in (64, 128) and rules.window is None and rules.softcap is None


def prompt_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, num_rows: int, rules: HeadRules, tiles: PromptTiles, out: Tensor
) -> None:
    """q [T, Hq * D], k and v [T, Hkv * D], normed and turned -> out [T, Hq * D] of the rows that begin at `starts`.

    starts: int32 [num_rows + 1], and may begin above 0; tokens of other rows are not touched.
    """
    size = rules.head_dim
    num_q, group = q.shape[1] // size, q.shape[1] // k.shape[1]
    described = [
        TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, size])
        for x, rows in ((q, tiles.queries), (k, tiles.keys), (v, tiles.keys))
    ]
    _prompts[(num_q, len(q) // tiles.queries + num_rows)](
        *described, starts, num_rows, out, rules.scale * LOG2_E.value,
        NUM_Q=num_q, GROUP=group, SIZE=size, BLOCK_M=tiles.queries, TILE=tiles.keys, STAGES=tiles.stages,
        num_warps=tiles.warps,
    )  # fmt: skip
