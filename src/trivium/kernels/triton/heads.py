"""Heads of queries and keys: normed and turned in place, keys and values put into the paged cache, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.attention import HeadRules

HEADS_AT_ONCE = 8  # of one program


@triton.jit
def turned(x, index, valid, norm, eps, cos, sin, HALF: tl.constexpr, SIZE: tl.constexpr, HAS_NORM: tl.constexpr):
    """Heads x + index (pointers [N, D] and element numbers [1, D]), normed over D and turned, in float32.

    `cos` and `sin` point to the token's rows. Element i turns with element i + HALF; those from 2 * HALF on pass.
    """
    turns = index < 2 * HALF
    partner = tl.where(index < HALF, index + HALF, index - HALF)
    partner = tl.where(turns, partner, index)
    value = tl.load(x + index, mask=valid, other=0.0).to(tl.float32)
    other = tl.load(x + partner, mask=valid, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.math.rsqrt(tl.sum(value * value, axis=1) / SIZE + eps)[:, None]
        inside = index < SIZE
        value = value * scale * tl.load(norm + index, mask=inside, other=0.0).to(tl.float32)
        other = other * scale * tl.load(norm + partner, mask=inside, other=0.0).to(tl.float32)
    angle = tl.where(index < HALF, index, index - HALF)
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    return value * c + tl.where(index < HALF, -other, other) * s


@triton.jit
def _turn_and_store(
    q, k, v, q_stride, k_stride, v_stride, q_norm, k_norm, eps, cos, sin, slots,
    keys, values, block_stride, token_stride, head_stride,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    num_q_parts: tl.constexpr = (NUM_Q + BLOCK_H - 1) // BLOCK_H
    element = tl.arange(0, BLOCK_D)[None, :]
    cos += token * HALF
    sin += token * HALF
    if part < num_q_parts:
        head = part * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        valid = (head < NUM_Q) & (element < SIZE)
        place = q + token * q_stride + head * SIZE
        result = turned(place, element, valid, q_norm, eps, cos, sin, HALF, SIZE, HAS_NORM)
        tl.debug_barrier()  # an element's partner may be another thread's
        tl.store(place + element, result.to(q.dtype.element_ty), mask=valid)
    else:
        head = (part - num_q_parts) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        valid = (head < NUM_KV) & (element < SIZE)
        place = k + token * k_stride + head * SIZE
        key = turned(place, element, valid, k_norm, eps, cos, sin, HALF, SIZE, HAS_NORM).to(k.dtype.element_ty)
        value = tl.load(v + token * v_stride + head * SIZE + element, mask=valid, other=0.0)
        tl.debug_barrier()
        tl.store(place + element, key, mask=valid)
        slot = tl.load(slots + token).to(tl.int64)
        cell = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride + head * head_stride + element
        tl.store(keys + cell, key.to(keys.dtype.element_ty), mask=valid & (slot >= 0))
        tl.store(values + cell, value.to(values.dtype.element_ty), mask=valid & (slot >= 0))


def turn_and_store(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor,
    rules: HeadRules,
) -> None:  # fmt: skip
    """q, k and v [T, heads * D], of which q and k are turned in place; caches [num_blocks, block_size, Hkv, D].

    A negative slot is of a token that only pads, and is not stored.
    """
    tokens, size, half = len(q), rules.head_dim, cos.shape[-1]
    if not tokens:
        return
    num_q, num_kv = q.shape[1] // size, k.shape[1] // size
    heads = min(HEADS_AT_ONCE, triton.next_power_of_2(num_q))
    grid = (tokens, triton.cdiv(num_q, heads) + triton.cdiv(num_kv, heads))
    assert keys.stride() == values.stride() and keys.stride(3) == 1
    _turn_and_store[grid](
        q, k, v, q.stride(0), k.stride(0), v.stride(0), rules.q_norm, rules.k_norm, rules.norm_eps, cos, sin, slots,
        keys, values, keys.stride(0), keys.stride(1), keys.stride(2),
        NUM_Q=num_q, NUM_KV=num_kv, SIZE=size, HALF=half, BLOCK_SIZE=keys.shape[1],
        HAS_NORM=rules.q_norm is not None, BLOCK_D=triton.next_power_of_2(size), BLOCK_H=heads, num_warps=2,
    )  # fmt: skip
