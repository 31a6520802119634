"""Attention of rows that have one new token each, with all before it: their heads turned, stored and attended to at once.

The keys of a row are split over programs, each with its own running softmax; the last of them to end merges what all found.
All query heads that share a key/value head are one program's, so that keys and values are read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.attention import AttentionBatch, HeadRules
from trivium.kernels.triton.early_launch import inputs_are_there, launch_options
from trivium.kernels.triton.heads import turned

LOG2_E = tl.constexpr(1.4426950408889634)
FEW_SPLITS = 32  # up to this many share one compiled kernel


@dataclass(frozen=True)
class DecodeTiles:
    """How the work of one call is cut."""

    keys: int = 64  # of one turn of a program's loop
    splits: int = 1  # programs that share the keys of a row and head
    warps: int = 4
    stages: int = 3


@triton.jit
def _span(context, split, num_splits, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """(first key that is seen, begin, end) of a split of the keys before the newest; cut at multiples of TILE."""
    before = context - 1
    seen = 0
    if WINDOW > 0:
        seen = tl.maximum(context - WINDOW, 0)
    first_tile = seen // TILE
    tiles = tl.cdiv(before, TILE) - first_tile
    per_split = tl.maximum(tl.cdiv(tiles, num_splits), 1)
    begin = (first_tile + split * per_split) * TILE
    end = tl.minimum(begin + per_split * TILE, before)
    return seen, begin, end


@triton.jit
def _merged(
    part_out, part_max, part_sum, first, num_ran, num_splits,
    SIZE: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """What the first `num_ran` splits found, of GROUP query heads from `first` on (counted over all rows) -> [BLOCK_G, D].

    It was written by other programs: the first-level cache may have what stood there before.
    """
    member = tl.arange(0, BLOCK_G)
    head = (first + member) * num_splits
    every = tl.arange(0, BLOCK_S)[None, :]
    known = (member < GROUP)[:, None] & (every < num_ran)
    maxima = tl.load(part_max + head[:, None] + every, mask=known, other=float("-inf"), cache_modifier=".cg")
    highest = tl.where(member < GROUP, tl.max(maxima, axis=1), 0.0)
    total = tl.zeros((BLOCK_G,), tl.float32)
    mixed = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    element = tl.arange(0, BLOCK_D)[None, None, :]
    for start in tl.range(0, num_ran, AT_ONCE, num_stages=1):
        split = start + tl.arange(0, AT_ONCE)
        ran = (member < GROUP)[:, None] & (split < num_ran)[None, :]
        index = head[:, None] + split[None, :]
        found = tl.load(part_max + index, mask=ran, other=float("-inf"), cache_modifier=".cg")
        weight = tl.exp2(found - highest[:, None])
        total += tl.sum(weight * tl.load(part_sum + index, mask=ran, other=0.0, cache_modifier=".cg"), axis=1)
        inside = ran[:, :, None] & (element < SIZE)
        part = tl.load(part_out + index[:, :, None] * SIZE + element, mask=inside, other=0.0, cache_modifier=".cg")
        mixed += tl.sum(part * weight[:, :, None], axis=1)
    return mixed / tl.where(member < GROUP, total, 1.0)[:, None]


# Where tables begin and how wide they are differs from step to step.
@triton.jit(
    do_not_specialize=["table_row_stride", "table_stride"],
    do_not_specialize_on_alignment=["table", "contexts", "slots"],
)
def _decode(
    q, k, v, q_stride, k_stride, v_stride, q_norm, k_norm, eps, cos, sin, slots,
    keys, values, block_stride, token_stride, head_stride, table, table_row_stride, table_stride, contexts,
    out, part_out, part_max, part_sum, arrivals, scale, softcap,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_NORM: tl.constexpr, TURNS: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, IS_SPLIT: tl.constexpr,
    BLOCK_S: tl.constexpr, MERGED_G: tl.constexpr, MERGED_S: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The newest key and value are seen by the first split, from registers: it is the one that every row has."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    context = tl.load(contexts + row)
    seen, begin, end = _span(context, split, num_splits, WINDOW, TILE)
    member = tl.arange(0, BLOCK_G)[:, None]
    element = tl.arange(0, BLOCK_D)[None, :]
    valid = (member < GROUP) & (element < SIZE)
    q_head = head * GROUP + member
    inputs_are_there(EARLY)
    if (context > 0) & ((split == 0) | (begin < end)):
        place = q + row * q_stride + q_head * SIZE
        if TURNS:
            query = turned(
                place, element, valid, q_norm, eps, cos + row * HALF, sin + row * HALF, HALF, SIZE, HAS_NORM
            ).to(keys.dtype.element_ty)
        else:
            query = tl.load(place + element, mask=valid, other=0.0).to(keys.dtype.element_ty)
        highest = tl.full((BLOCK_G,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        mixed = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)

        if split == 0:
            one = tl.zeros((1, 1), tl.int32)
            inside = (one == 0) & (element < SIZE)
            new = k + row * k_stride + head * SIZE + one
            if TURNS:
                key = turned(
                    new, element, inside, k_norm, eps, cos + row * HALF, sin + row * HALF, HALF, SIZE, HAS_NORM
                )
            else:
                key = tl.load(new + element, mask=inside, other=0.0).to(tl.float32)
            value = tl.load(v + row * v_stride + head * SIZE + one + element, mask=inside, other=0.0)
            key = key.to(keys.dtype.element_ty)
            value = value.to(values.dtype.element_ty)
            slot = tl.load(slots + row).to(tl.int64)
            cell = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride + head * head_stride
            tl.store(keys + cell + element, key, mask=inside & (slot >= 0))
            tl.store(values + cell + element, value, mask=inside & (slot >= 0))
            highest = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale
            if HAS_SOFTCAP:
                highest = softcap * (2 * tl.sigmoid(2 * highest / softcap) - 1)
            highest = highest * LOG2_E
            total += 1.0
            mixed += value.to(tl.float32)

        lane = tl.arange(0, TILE)
        head_keys = keys + head * head_stride
        head_values = values + head * head_stride
        row_table = table + row * table_row_stride
        for start in tl.range(begin, end, TILE, num_stages=STAGES):
            position = start + lane
            present = (position < end) & (position >= seen)
            block = tl.load(row_table + position // BLOCK_SIZE * table_stride, mask=present, other=0).to(tl.int64)
            cell = block * block_stride + (position % BLOCK_SIZE) * token_stride
            inside = present[:, None] & (element < SIZE)
            key = tl.load(head_keys + cell[:, None] + element, mask=inside, other=0.0)
            value = tl.load(head_values + cell[:, None] + element, mask=inside, other=0.0)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            if HAS_SOFTCAP:
                score = softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)
            score = tl.where(present[None, :], score * LOG2_E, float("-inf"))
            # A tile has at least one key that is seen, so the new maximum is a number.
            new_highest = tl.maximum(highest, tl.max(score, axis=1))
            weight = tl.exp2(score - new_highest[:, None])
            shrink = tl.exp2(highest - new_highest)
            total = total * shrink + tl.sum(weight, axis=1)
            mixed = tl.dot(weight.to(value.dtype), value, mixed * shrink[:, None], input_precision="ieee")
            highest = new_highest

        num_q: tl.constexpr = NUM_KV * GROUP
        if not IS_SPLIT:
            result = mixed / total[:, None]
            tl.store(out + (row * num_q + q_head) * SIZE + element, result.to(out.dtype.element_ty), mask=valid)
        else:
            index = (row * num_q + head * GROUP + tl.arange(0, BLOCK_G)) * num_splits + split
            of_group = tl.arange(0, BLOCK_G) < GROUP
            tl.store(part_max + index, highest, mask=of_group)
            tl.store(part_sum + index, total, mask=of_group)
            tl.store(part_out + index[:, None] * SIZE + element, mixed, mask=valid)
            tl.debug_barrier()  # all of that is written before the program is counted
            _, begins, ends = _span(context, tl.arange(0, BLOCK_S), num_splits, WINDOW, TILE)
            # Only the first splits have keys, and of these the first even without any before the newest.
            num_ran = tl.maximum(tl.sum(((begins < ends) & (tl.arange(0, BLOCK_S) < num_splits)).to(tl.int32)), 1)
            if tl.atomic_add(arrivals + row * NUM_KV + head, 1, sem="acq_rel", scope="gpu") == num_ran - 1:
                tl.store(arrivals + row * NUM_KV + head, 0)
                first_head = row * num_q + head * GROUP
                merged = _merged(
                    part_out, part_max, part_sum, first_head, num_ran, num_splits,
                    SIZE, GROUP, MERGED_G, BLOCK_D, BLOCK_S, MERGED_S,
                )  # fmt: skip
                each = tl.arange(0, MERGED_G)[:, None]
                merged_place = out + (first_head + each) * SIZE + element
                tl.store(merged_place, merged.to(out.dtype.element_ty), mask=(each < GROUP) & (element < SIZE))
    elif split == 0:  # a row that only pads
        num_heads: tl.constexpr = NUM_KV * GROUP
        nothing = tl.zeros((BLOCK_G, BLOCK_D), out.dtype.element_ty)
        tl.store(out + (row * num_heads + q_head) * SIZE + element, nothing, mask=valid)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    batch: AttentionBatch,
    rules: HeadRules,
    tiles: DecodeTiles,
    out: Tensor | None = None,
    arrivals: Tensor | None = None,
    starts_early: bool = False,
) -> Tensor:
    """q [R, Hq * D], k and v [R, Hkv * D] of one token of each row, caches [num_blocks, block_size, Hkv, D]
    -> [R, Hq * D].

    With `cos` and `sin` [R, half] q and k are as projected; without, normed and turned already. A row whose context
    is 0 only pads: nothing is stored, and its result is 0. `arrivals`: int32, at least R * Hkv zeros, which they are again
    after the call; no other call may use them at the same time. `starts_early`: before the kernel ahead of it has ended, which
    must not write contexts (early_launch.py).
    """
    rows, size = len(q), rules.head_dim
    num_q, num_kv = q.shape[1] // size, k.shape[1] // size
    group, splits = num_q // num_kv, tiles.splits
    out = torch.empty((rows, num_q * size), dtype=q.dtype, device=q.device) if out is None else out
    if not rows:
        return out
    assert keys.stride() == values.stride() and keys.stride(3) == 1
    part_out = part_max = part_sum = None
    if splits > 1:
        part_out = torch.empty((rows, num_q, splits, size), dtype=torch.float32, device=q.device)
        part_max, part_sum = torch.empty((2, rows, num_q, splits), dtype=torch.float32, device=q.device)
        if arrivals is None:
            arrivals = torch.zeros(rows * num_kv, dtype=torch.int32, device=q.device)
        assert len(arrivals) >= rows * num_kv
    merged_heads = triton.next_power_of_2(group)
    _decode[(rows, num_kv, splits)](
        q, k, v, q.stride(0), k.stride(0), v.stride(0), rules.q_norm, rules.k_norm, rules.norm_eps, cos, sin,
        batch.slots, keys, values, keys.stride(0), keys.stride(1), keys.stride(2),
        batch.block_table, *batch.block_table.stride(), batch.context_lens,
        out, part_out, part_max, part_sum, arrivals, rules.scale, rules.softcap or 1.0,
        NUM_KV=num_kv, GROUP=group, SIZE=size, HALF=0 if cos is None else cos.shape[-1], BLOCK_SIZE=keys.shape[1],
        WINDOW=rules.window or 0, HAS_SOFTCAP=rules.softcap is not None, HAS_NORM=rules.q_norm is not None,
        TURNS=cos is not None, BLOCK_G=max(16, merged_heads), BLOCK_D=max(16, triton.next_power_of_2(size)),
        TILE=tiles.keys, IS_SPLIT=splits > 1, BLOCK_S=max(FEW_SPLITS, triton.next_power_of_2(splits)), MERGED_G=merged_heads,
        MERGED_S=max(1, 32 // merged_heads), STAGES=tiles.stages, num_warps=tiles.warps, **launch_options(starts_early),
    )  # fmt: skip
    return out
