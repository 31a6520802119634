"""Draws a token of each row of logits, the one that kernels/sample.py's reference draws, without sorting the vocabulary.

Weights are whole numbers, kept as float32, which holds each of them exactly; only their sums need 64 bits. What top-k and
top-p keep is a weight and how many of the tokens that have just that one: the weight is found by a search over the bits of
float32, two of them in each pass over the row, which ends in the weight itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.sample import (
    ALL_BANNED,
    LOG2_E,
    MAX_SCALE,
    NOT_FINITE,
    POWER,
    WEIGHT_BITS,
    Draws,
    SampleBatch,
    changed_logits,
    reference,
)
from trivium.kernels.triton.argmax import CHUNK, argmax, argmax_of_chunks, chunk_maxima

BLOCK = 2048
BITS = tl.constexpr(WEIGHT_BITS)
C0, C1, C2, C3, C4 = (tl.constexpr(value) for value in POWER)
INFINITY_BITS = tl.constexpr(0x7F800000)
ALL = tl.constexpr(1 << 40)  # more tokens than there are


@triton.jit
def _rounded(x):
    """To the nearest whole number, of two the even one; 0 <= |x|. float32 has no fractions from 2^23 on."""
    edge = 8388608.0
    size = tl.abs(x)
    whole = (size + edge) - edge
    return tl.where(size < edge, tl.where(x < 0, -whole, whole), x)


@triton.jit
def _weigh(
    logits, row_stride, best, scales, weights, masses,
    SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    chunk = tl.arange(0, BLOCK_C)
    largest = tl.max(tl.load(best + row * NUM_CHUNKS + chunk, mask=chunk < NUM_CHUNKS, other=float("-inf")), axis=0)
    value = tl.load(logits + row * row_stride + i, mask=i < SIZE, other=float("-inf")).to(tl.float32)
    exponent = (value - largest) * tl.load(scales + row)
    is_kept = exponent >= -BITS
    exponent = tl.where(is_kept, exponent, 0.0)
    whole = _rounded(exponent)
    rest = exponent - whole
    power = (((C4 * rest + C3) * rest + C2) * rest + C1) * rest + C0
    power = power * rest + 1.0
    shift = ((whole.to(tl.int32) + (BITS + 127)) << 23).to(tl.float32, bitcast=True)
    weight = tl.where(is_kept, _rounded(power * shift), 0.0)
    tl.store(weights + row * SIZE + i, weight, mask=i < SIZE)
    tl.store(masses + row * NUM_CHUNKS + tl.program_id(1), tl.sum(weight.to(tl.int64), axis=0))


@triton.jit
def _as_weight(bits):
    return tl.minimum(bits, INFINITY_BITS).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _least(weights, wanted, SIZE: tl.constexpr, BLOCK: tl.constexpr, BY_MASS: tl.constexpr):
    """(The largest weight such that the amounts of those of at least it reach `wanted`, the amounts above it)."""
    lane = tl.arange(0, BLOCK)
    least = wanted * 0
    above = wanted * 0
    for step in range(16):
        place = 30 - 2 * step
        one, two, three = (
            _as_weight(least + (tl.full((), 1, tl.int64) << place)),
            _as_weight(least + (tl.full((), 2, tl.int64) << place)),
            _as_weight(least + (tl.full((), 3, tl.int64) << place)),
        )
        ones = tl.zeros((BLOCK,), tl.int64)
        twos = tl.zeros((BLOCK,), tl.int64)
        threes = tl.zeros((BLOCK,), tl.int64)
        for start in tl.range(0, SIZE, BLOCK, num_stages=3):
            w = tl.load(weights + start + lane, mask=start + lane < SIZE, other=-1.0)
            if BY_MASS:
                amount = w.to(tl.int64)
            else:
                amount = tl.full((BLOCK,), 1, tl.int64)
            ones += tl.where(w >= one, amount, 0)
            twos += tl.where(w >= two, amount, 0)
            threes += tl.where(w >= three, amount, 0)
        first, second, third = tl.sum(ones, axis=0), tl.sum(twos, axis=0), tl.sum(threes, axis=0)
        reached = (first >= wanted).to(tl.int64) + (second >= wanted).to(tl.int64) + (third >= wanted).to(tl.int64)
        # What does not reach is the amount above the weight that will be found, if no later pass finds more.
        above = tl.where(reached == 0, first, tl.where(reached == 1, second, tl.where(reached == 2, third, above)))
        least += reached << place
    return _as_weight(least), above


@triton.jit
def _mass_above(weights, least, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.int64)
    for start in tl.range(0, SIZE, BLOCK, num_stages=3):
        w = tl.load(weights + start + lane, mask=start + lane < SIZE, other=-1.0)
        sums += tl.where(w > least, w, 0.0).to(tl.int64)
    return tl.sum(sums, axis=0)


@triton.jit
def _filter(weights, columns, least_weights, nums_equal, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Which weight top-k and top-p leave as the least, and how many of the tokens that have it, the first by id."""
    row = tl.program_id(0).to(tl.int64)
    columns += row * 6
    weights += row * SIZE
    least = tl.full((), 0.0, tl.float32)
    num_equal = tl.full((), ALL, tl.int64)
    if tl.load(columns).to(tl.float32) > 0:
        top_k = tl.load(columns + 1).to(tl.int64)
        top_p = tl.load(columns + 2)
        if (top_k > 0) & (top_k < SIZE):
            k_least, k_above = _least(weights, top_k, SIZE, BLOCK, False)
            least = k_least
            num_equal = top_k - k_above
        if top_p < 1:
            mass = _mass_above(weights, least, SIZE, BLOCK)
            if (num_equal < ALL) & (least > 0):
                mass += num_equal * least.to(tl.int64)
            wanted = tl.maximum(tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64), 1)
            p_least, p_above = _least(weights, wanted, SIZE, BLOCK, True)
            least = p_least
            num_equal = (wanted - p_above + p_least.to(tl.int64) - 1) // tl.maximum(p_least.to(tl.int64), 1)
    tl.store(least_weights + row, least)
    tl.store(nums_equal + row, num_equal)


@triton.jit
def _count(
    weights, least_weights, lowest_weights, masses, equals,
    SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each chunk: the mass above the least weight that is kept, and how many tokens have just that."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    i = chunk * BLOCK + tl.arange(0, BLOCK)
    w = tl.load(weights + row * SIZE + i, mask=i < SIZE, other=-1.0)
    least = tl.load(least_weights + row)
    whole = w.to(tl.int64)
    is_above = (w > least) & (whole >= tl.load(lowest_weights + row))
    tl.store(masses + row * NUM_CHUNKS + chunk, tl.sum(tl.where(is_above, whole, 0), axis=0))
    tl.store(equals + row * NUM_CHUNKS + chunk, tl.sum((w == least).to(tl.int64), axis=0))


@triton.jit
def _draw(
    weights, columns, masses, least_weights, nums_equal, lowest_weights, equals, tokens,
    SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, FILTERS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Into `tokens`, which holds the likeliest; those of rows that take it, or have failed, stay."""
    row = tl.program_id(0).to(tl.int64)
    columns += row * 6
    chunk = tl.arange(0, BLOCK_C)
    if (tl.load(columns).to(tl.float32) > 0) & (tl.load(tokens + row) >= 0):
        mass = tl.load(masses + row * NUM_CHUNKS + chunk, mask=chunk < NUM_CHUNKS, other=0)
        if FILTERS:
            least = tl.load(least_weights + row)
            num_equal = tl.load(nums_equal + row)
            lowest = tl.load(lowest_weights + row)
            equal = tl.load(equals + row * NUM_CHUNKS + chunk, mask=chunk < NUM_CHUNKS, other=0)
            left = tl.maximum(num_equal - (tl.cumsum(equal, axis=0) - equal), 0)
            worth = tl.where(least.to(tl.int64) >= lowest, least.to(tl.int64), 0)
            mass += tl.minimum(equal, left) * worth
        total = tl.sum(mass, axis=0)
        target = tl.minimum((tl.load(columns + 5) * total.to(tl.float64)).to(tl.int64), total - 1)
        here = tl.sum(((tl.cumsum(mass, axis=0) <= target) & (chunk < NUM_CHUNKS)).to(tl.int32), axis=0)
        here = tl.minimum(here, NUM_CHUNKS - 1)
        i = here * BLOCK + tl.arange(0, BLOCK)
        w = tl.load(weights + row * SIZE + i, mask=i < SIZE, other=-1.0)
        kept = tl.where(w > 0, w, 0.0).to(tl.int64)
        if FILTERS:
            is_equal = (w == least).to(tl.int64)
            rank = tl.sum(tl.where(chunk < here, equal, 0), axis=0) + tl.cumsum(is_equal, axis=0) - is_equal
            keeps = ((w > least) | ((w == least) & (rank < num_equal))) & (kept >= lowest)
            kept = tl.where(keeps, kept, 0)
        sums = tl.sum(tl.where(chunk < here, mass, 0), axis=0) + tl.cumsum(kept, axis=0)
        place = here * BLOCK + tl.sum((sums <= target).to(tl.int32), axis=0)
        tl.store(tokens + row, tl.minimum(place, SIZE - 1).to(tl.int64))


def sampled(logits: Tensor, batch: SampleBatch) -> Tensor:
    """The op `sample`: logits [M, V] -> int64 [M]. Rows that ask for typical-p are left to the reference, with all others."""
    if batch.draws is not None and batch.draws.typical:
        return reference(logits, batch)
    changed = changed_logits(logits.float(), batch) if batch.changes_logits else logits
    tokens = argmax(changed) if batch.draws is None else draw(changed, batch.draws)
    if not batch.changes_logits:
        return tokens
    is_sound = argmax(logits) != NOT_FINITE
    return torch.where(is_sound, torch.where(tokens == NOT_FINITE, ALL_BANNED, tokens), NOT_FINITE)


def draw(logits: Tensor, draws: Draws) -> Tensor:
    """logits [M, V] -> int64 [M]: a token, or NOT_FINITE."""
    num_rows, size = logits.shape
    if not num_rows:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    best, places = chunk_maxima(logits)
    tokens = argmax_of_chunks(best, places, size)
    scales = (draws.temperature.reciprocal() * LOG2_E).clamp(max=MAX_SCALE)
    weights = torch.empty((num_rows, size), dtype=torch.float32, device=logits.device)
    chunks = best.shape[1]
    masses, equals = (torch.empty((num_rows, chunks), dtype=torch.int64, device=logits.device) for _ in range(2))
    sizes = {"SIZE": size, "NUM_CHUNKS": chunks, "BLOCK": CHUNK}
    exact = {"enable_fp_fusion": False}  # else products and sums are rounded once instead of twice
    block_c = triton.next_power_of_2(chunks)
    _weigh[(num_rows, chunks)](
        logits, logits.stride(0), best, scales, weights, masses, BLOCK_C=block_c, **sizes, **exact
    )
    least = num_equal = lowest = None
    if draws.filters:
        lowest = (draws.min_p * 2**WEIGHT_BITS).ceil().long()
        least = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
        num_equal = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        _filter[(num_rows,)](weights, draws.columns, least, num_equal, SIZE=size, BLOCK=BLOCK, num_warps=8, **exact)
        _count[(num_rows, chunks)](weights, least, lowest, masses, equals, **sizes)
    _draw[(num_rows,)](
        weights, draws.columns, masses, least, num_equal, lowest, equals, tokens,
        FILTERS=draws.filters, BLOCK_C=block_c, **sizes, **exact,
    )  # fmt: skip
    return tokens
