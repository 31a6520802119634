"""Attention of rows with any number of new tokens over paged keys and values that hold them and all before.

A program has a tile of queries of one row: some tokens, times all query heads that share a key/value head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.attention import AttentionBatch, HeadRules

LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class PrefillTiles:
    queries: int = 128  # tokens times query heads of a group
    keys: int = 64
    warps: int = 8
    stages: int = 3
    in_order: bool = False  # every query through the same instructions, whatever the number of tokens


@triton.jit
def row_of(starts, num_rows, tile, BLOCK_Q: tl.constexpr):
    """The row whose tiles hold `tile`: tiles of row r begin at starts[r] // BLOCK_Q + r, one more than it may need."""
    low = tl.full((), 0, tl.int32)
    high = tl.full((), 0, tl.int32) + num_rows
    while low + 1 < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _attend_tiles(
    query, positions, mixed, highest, total, keys, values, block_stride, token_stride, table, table_stride, begin, end,
    scale, softcap,
    SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Keys begin … end - 1. Without MASKED all of them are seen by every query."""
    lane = tl.arange(0, TILE)
    element = tl.arange(0, BLOCK_D)[None, :]
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        position = start + lane
        if MASKED:
            # A block beyond a window's reach is not in the table any more.
            block = tl.load(table + position // BLOCK_SIZE * table_stride, mask=position < end, other=-1).to(tl.int64)
            inside = (block >= 0)[:, None] & (element < SIZE)
        else:
            block = tl.load(table + position // BLOCK_SIZE * table_stride).to(tl.int64)
            inside = (lane >= 0)[:, None] & (element < SIZE)
        cell = block * block_stride + (position % BLOCK_SIZE) * token_stride
        if MASKED or BLOCK_D != SIZE:
            key = tl.load(keys + cell[:, None] + element, mask=inside, other=0.0)
            value = tl.load(values + cell[:, None] + element, mask=inside, other=0.0)
        else:
            key = tl.load(keys + cell[:, None] + element)
            value = tl.load(values + cell[:, None] + element)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        if HAS_SOFTCAP:
            score = softcap * (2 * tl.sigmoid(2 * scale * score / softcap) - 1) * LOG2_E
        else:
            score = score * (scale * LOG2_E)
        if MASKED:
            seen = position[None, :] <= positions[:, None]
            if WINDOW > 0:
                seen = seen & (position[None, :] > positions[:, None] - WINDOW)
            score = tl.where(seen, score, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=1))
        if MASKED:
            # A query that has seen no key yet: any number keeps its weights 0, where -inf would make them nan.
            shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        else:
            shift = new_highest
        weight = tl.exp2(score - shift[:, None])
        shrink = tl.exp2(highest - shift)
        total = total * shrink + tl.sum(weight, axis=1)
        mixed = tl.dot(weight.to(value.dtype), value, mixed * shrink[:, None], input_precision="ieee")
        highest = new_highest
    return mixed, highest, total


# Where tables begin and how wide they are differs from step to step.
@triton.jit(
    do_not_specialize=["num_rows", "table_row_stride", "table_stride"],
    do_not_specialize_on_alignment=["table", "starts", "contexts"],
)
def _prefill(
    q, q_stride, keys, values, block_stride, token_stride, head_stride, table, table_row_stride, table_stride,
    starts, contexts, num_rows, out, scale, softcap,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, IN_ORDER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # The last tiles of a row see the most keys: they go first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    row = row_of(starts, num_rows, tile, BLOCK_Q)
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    first = (tile - (start // BLOCK_Q + row)) * BLOCK_Q  # token of the row
    if (first >= 0) & (first < count):
        before = tl.load(contexts + row) - count  # keys that were there
        member = tl.arange(0, BLOCK_M)
        token = first + member // GROUP
        positions = before + token
        element = tl.arange(0, BLOCK_D)[None, :]
        valid = ((member < BLOCK_Q * GROUP) & (token < count))[:, None] & (element < SIZE)
        place = (start + token).to(tl.int64)[:, None] * q_stride + (head * GROUP + member % GROUP)[:, None] * SIZE
        query = tl.load(q + place + element, mask=valid, other=0.0).to(keys.dtype.element_ty)
        highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        end = before + tl.minimum(first + BLOCK_Q, count)
        whole = 0  # keys below are seen by all queries of the tile
        begin = 0
        head_keys = keys + head.to(tl.int64) * head_stride
        head_values = values + head.to(tl.int64) * head_stride
        row_table = table + row.to(tl.int64) * table_row_stride
        if WINDOW > 0:
            begin = tl.maximum(before + first - WINDOW + 1, 0) // TILE * TILE
            whole = begin
        elif not IN_ORDER:  # else one loop for all: another one may be compiled to round differently
            whole = (before + first + 1) // TILE * TILE
            mixed, highest, total = _attend_tiles(
                query, positions, mixed, highest, total, head_keys, head_values, block_stride, token_stride, row_table,
                table_stride, 0, whole, scale, softcap, SIZE, BLOCK_SIZE, WINDOW, HAS_SOFTCAP, False, BLOCK_D, TILE, STAGES,
            )  # fmt: skip
        mixed, highest, total = _attend_tiles(
            query, positions, mixed, highest, total, head_keys, head_values, block_stride, token_stride, row_table,
            table_stride, whole, end, scale, softcap, SIZE, BLOCK_SIZE, WINDOW, HAS_SOFTCAP, True, BLOCK_D, TILE, STAGES,
        )  # fmt: skip
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        num_q: tl.constexpr = NUM_KV * GROUP
        place = ((start + token).to(tl.int64) * num_q + head * GROUP + member % GROUP)[:, None] * SIZE
        tl.store(out + place + element, result.to(out.dtype.element_ty), mask=valid)


def prefill_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: AttentionBatch,
    rules: HeadRules,
    tiles: PrefillTiles,
    out: Tensor | None = None,
) -> Tensor:
    """q [T, Hq * D], normed and turned; caches [num_blocks, block_size, Hkv, D], with this step's -> [T, Hq * D].

    `batch.query_starts` count in q and out, and may begin above 0; tokens of other rows are not touched.
    """
    size, num_kv = rules.head_dim, keys.shape[2]
    group = q.shape[1] // size // num_kv
    out = torch.empty((len(q), q.shape[1]), dtype=q.dtype, device=q.device) if out is None else out
    num_rows = len(batch.context_lens)
    if not num_rows or not len(q):
        return out
    assert keys.stride() == values.stride() and keys.stride(3) == 1
    block_m = max(16, tiles.queries, triton.next_power_of_2(group))  # whatever the length, as each is compiled
    grid = (len(q) // (block_m // group) + num_rows, num_kv)
    _prefill[grid](
        q, q.stride(0), keys, values, keys.stride(0), keys.stride(1), keys.stride(2),
        batch.block_table, *batch.block_table.stride(), batch.query_starts, batch.context_lens, num_rows,
        out, rules.scale, rules.softcap or 1.0,
        NUM_KV=num_kv, GROUP=group, SIZE=size, BLOCK_SIZE=keys.shape[1], WINDOW=rules.window or 0,
        HAS_SOFTCAP=rules.softcap is not None, IN_ORDER=tiles.in_order, BLOCK_M=block_m, BLOCK_D=max(16, triton.next_power_of_2(size)),
        TILE=tiles.keys, STAGES=tiles.stages, num_warps=tiles.warps if block_m >= 64 else 4,
    )  # fmt: skip
    return out
