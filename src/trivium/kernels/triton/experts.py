"""A mixture of gated feed-forward layers.

For few tokens each pair of token and expert streams the expert's weights by itself; for many, tokens are gathered by
expert, and tiles of them are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.gated import Activation
from trivium.kernels.triton.activation import activate
from trivium.kernels.triton.early_launch import inputs_are_there, launch_options
from trivium.kernels.triton.route import ExpertTiles, Routed

# --- few tokens


@dataclass(frozen=True)
class StreamTiles:
    outputs: int
    inputs: int
    warps: int
    stages: int


@triton.jit
def _stream_up(
    x, norm, gate_up, experts, middle, x_stride, eps,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, TOP_K: tl.constexpr, HAS_NORM: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    inputs_are_there(EARLY)
    pair = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    expert = tl.load(experts + pair).to(tl.int64)
    gate = gate_up + expert * (2 * NUM_OUT * NUM_IN)
    up = gate + NUM_OUT * NUM_IN
    rows = tl.minimum(n, NUM_OUT - 1)[:, None] * NUM_IN
    x_row = x + pair // TOP_K * x_stride
    gate_sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up_sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
        i = k + lane
        if NUM_IN % BLOCK_K == 0:
            g = tl.load(gate + rows + i[None, :])
            u = tl.load(up + rows + i[None, :])
        else:
            g = tl.load(gate + rows + i[None, :], mask=(i < NUM_IN)[None, :], other=0.0)
            u = tl.load(up + rows + i[None, :], mask=(i < NUM_IN)[None, :], other=0.0)
        value = tl.load(x_row + i, mask=i < NUM_IN, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += value * value
            value = value * tl.load(norm + i, mask=i < NUM_IN, other=0.0)
        gate_sums += g.to(tl.float32) * value[None, :]
        up_sums += u.to(tl.float32) * value[None, :]
    y, z = tl.sum(gate_sums, axis=1), tl.sum(up_sums, axis=1)
    if HAS_NORM:
        scale = tl.math.rsqrt(tl.sum(squares, axis=0) / NUM_IN + eps)
        y, z = y * scale, z * scale
    result = activate(y, ACTIVATION) * z
    tl.store(middle + pair * NUM_OUT + n, result.to(middle.dtype.element_ty), mask=n < NUM_OUT)


@triton.jit
def _stream_down(
    middle, down, experts, shares, residual, out,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, TOP_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    inputs_are_there(EARLY)
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    rows = tl.minimum(n, NUM_OUT - 1)[:, None] * NUM_IN
    steps: tl.constexpr = (NUM_IN + BLOCK_K - 1) // BLOCK_K
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for step in tl.range(0, TOP_K * steps, num_stages=STAGES):
        pair = token * TOP_K + step // steps
        i = step % steps * BLOCK_K + lane
        weight = down + tl.load(experts + pair).to(tl.int64) * (NUM_OUT * NUM_IN)
        if NUM_IN % BLOCK_K == 0:
            w = tl.load(weight + rows + i[None, :])
        else:
            w = tl.load(weight + rows + i[None, :], mask=(i < NUM_IN)[None, :], other=0.0)
        value = tl.load(middle + pair * NUM_IN + i, mask=i < NUM_IN, other=0.0).to(tl.float32)
        sums += w.to(tl.float32) * (value * tl.load(shares + pair))[None, :]
    inside = n < NUM_OUT
    place = token * NUM_OUT + n
    y = tl.sum(sums, axis=1) + tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


def stream_experts(
    hidden: Tensor,
    norm: Tensor,
    eps: float,
    routed: Routed,
    gate_up: Tensor,
    down: Tensor,
    activation: Activation,
    up_tiles: StreamTiles,
    down_tiles: StreamTiles,
    starts_early: bool = False,
) -> Tensor:
    """hidden [T, H], contiguous, gate_up [E, 2F, H], down [E, H, F] -> hidden + the experts of norm(hidden) [T, H]."""
    num_tokens, num_in = hidden.shape
    top_k, wide = routed.experts.shape[1], down.shape[2]
    middle = torch.empty((num_tokens * top_k, wide), dtype=hidden.dtype, device=hidden.device)
    _stream_up[(num_tokens * top_k, triton.cdiv(wide, up_tiles.outputs))](
        hidden, norm, gate_up, routed.experts, middle, hidden.stride(0), eps,
        NUM_IN=num_in, NUM_OUT=wide, TOP_K=top_k, HAS_NORM=True, ACTIVATION=activation, BLOCK_N=up_tiles.outputs,
        BLOCK_K=min(up_tiles.inputs, triton.next_power_of_2(num_in)), STAGES=up_tiles.stages, num_warps=up_tiles.warps,
        **launch_options(starts_early),
    )  # fmt: skip
    return stream_down(middle, routed, down, hidden, down_tiles, starts_early)


def stream_down(
    middle: Tensor, routed: Routed, down: Tensor, residual: Tensor, tiles: StreamTiles, starts_early: bool = False
) -> Tensor:
    """middle [T * k, F], of each pair of token and choice, down [E, H, F] -> residual [T, H] + each token's sum."""
    num_tokens, num_out = residual.shape
    top_k, wide = routed.experts.shape[1], down.shape[2]
    out = torch.empty_like(residual)
    _stream_down[(num_tokens, triton.cdiv(num_out, tiles.outputs))](
        middle, down, routed.experts, routed.shares, residual, out,
        NUM_IN=wide, NUM_OUT=num_out, TOP_K=top_k, BLOCK_N=tiles.outputs,
        BLOCK_K=min(tiles.inputs, triton.next_power_of_2(wide)), STAGES=tiles.stages, num_warps=tiles.warps,
        **launch_options(starts_early),
    )  # fmt: skip
    return out


# --- many tokens


@dataclass(frozen=True)
class GroupedTiles:
    rows: int  # pairs of token and expert
    outputs: int
    inputs: int
    warps: int
    stages: int


@triton.jit
def _grouped_up(
    x, gate_up, pair_of, expert_of_tile, middle, x_stride,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, TOP_K: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs have the same outputs of neighbouring tiles: those of one expert read its weights together.
    tile = tl.program_id(0)
    expert = tl.load(expert_of_tile + tile)
    if expert >= 0:
        place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of + place)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        lane = tl.arange(0, BLOCK_K)
        present = (pair >= 0)[:, None]
        x_rows = x + (tl.maximum(pair, 0) // TOP_K).to(tl.int64)[:, None] * x_stride
        gate = gate_up + expert.to(tl.int64) * (2 * NUM_OUT * NUM_IN) + tl.minimum(n, NUM_OUT - 1)[:, None] * NUM_IN
        gate_sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up_sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
            i = (k + lane)[None, :]
            if NUM_IN % BLOCK_K == 0:
                value = tl.load(x_rows + i, mask=present, other=0.0)
                g = tl.load(gate + i)
                u = tl.load(gate + NUM_OUT * NUM_IN + i)
            else:
                value = tl.load(x_rows + i, mask=present & (i < NUM_IN), other=0.0)
                g = tl.load(gate + i, mask=i < NUM_IN, other=0.0)
                u = tl.load(gate + NUM_OUT * NUM_IN + i, mask=i < NUM_IN, other=0.0)
            gate_sums = tl.dot(value, tl.trans(g), gate_sums, input_precision="ieee")
            up_sums = tl.dot(value, tl.trans(u), up_sums, input_precision="ieee")
        result = (activate(gate_sums, ACTIVATION) * up_sums).to(middle.dtype.element_ty)
        inside = present & (n < NUM_OUT)[None, :]
        tl.store(middle + place.to(tl.int64)[:, None] * NUM_OUT + n[None, :], result, mask=inside)


@triton.jit
def _grouped_down(
    middle, down, pair_of, expert_of_tile, shares, results,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    expert = tl.load(expert_of_tile + tile)
    if expert >= 0:
        place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of + place)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        lane = tl.arange(0, BLOCK_K)
        present = (pair >= 0)[:, None]
        rows = middle + place.to(tl.int64)[:, None] * NUM_IN
        weight = down + expert.to(tl.int64) * (NUM_OUT * NUM_IN) + tl.minimum(n, NUM_OUT - 1)[:, None] * NUM_IN
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
            i = (k + lane)[None, :]
            if NUM_IN % BLOCK_K == 0:
                value = tl.load(rows + i, mask=present, other=0.0)
                w = tl.load(weight + i)
            else:
                value = tl.load(rows + i, mask=present & (i < NUM_IN), other=0.0)
                w = tl.load(weight + i, mask=i < NUM_IN, other=0.0)
            sums = tl.dot(value, tl.trans(w), sums, input_precision="ieee")
        share = tl.load(shares + pair, mask=pair >= 0, other=0.0)
        inside = present & (n < NUM_OUT)[None, :]
        result = (sums * share[:, None]).to(results.dtype.element_ty)
        tl.store(results + pair.to(tl.int64)[:, None] * NUM_OUT + n[None, :], result, mask=inside)


@triton.jit
def _sum_choices(
    results, residual, out, SIZE: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    inputs_are_there(EARLY)
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(TOP_K):
        total += tl.load(results + (token * TOP_K + choice) * SIZE + i, mask=i < SIZE, other=0.0).to(tl.float32)
    total += tl.load(residual + token * SIZE + i, mask=i < SIZE, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + i, total.to(out.dtype.element_ty), mask=i < SIZE)


def grouped_experts(
    x: Tensor,
    routed: Routed,
    tiles: ExpertTiles,
    gate_up: Tensor,
    down: Tensor,
    activation: Activation,
    residual: Tensor,
    up_tiles: GroupedTiles,
    down_tiles: GroupedTiles,
) -> Tensor:
    """x [T, H], normed, gate_up [E, 2F, H], down [E, H, F] -> residual + the experts of x [T, H].

    A token's results are added in the order of its choices, likeliest first.
    """
    num_tokens, num_in = x.shape
    top_k, wide = routed.experts.shape[1], down.shape[2]
    assert tiles.rows == up_tiles.rows == down_tiles.rows
    num_tiles = len(tiles.expert_of_tile)
    middle = torch.empty((num_tiles * tiles.rows, wide), dtype=x.dtype, device=x.device)
    results = torch.empty((num_tokens * top_k, num_in), dtype=x.dtype, device=x.device)
    if not num_tokens:
        return torch.empty_like(residual)
    _grouped_up[(num_tiles, triton.cdiv(wide, up_tiles.outputs))](
        x, gate_up, tiles.pair_of, tiles.expert_of_tile, middle, x.stride(0),
        NUM_IN=num_in, NUM_OUT=wide, TOP_K=top_k, ACTIVATION=activation, BLOCK_M=tiles.rows, BLOCK_N=up_tiles.outputs,
        BLOCK_K=up_tiles.inputs, STAGES=up_tiles.stages, num_warps=up_tiles.warps,
    )  # fmt: skip
    _grouped_down[(num_tiles, triton.cdiv(num_in, down_tiles.outputs))](
        middle, down, tiles.pair_of, tiles.expert_of_tile, routed.shares, results,
        NUM_IN=wide, NUM_OUT=num_in, BLOCK_M=tiles.rows, BLOCK_N=down_tiles.outputs, BLOCK_K=down_tiles.inputs,
        STAGES=down_tiles.stages, num_warps=down_tiles.warps,
    )  # fmt: skip
    return sum_choices(results, residual, top_k)


def sum_choices(results: Tensor, residual: Tensor, top_k: int, starts_early: bool = False) -> Tensor:
    """results [T * k, H], each with its share in it already -> residual [T, H] + each token's sum, in that order."""
    num_tokens, size = residual.shape
    out = torch.empty((num_tokens, size), dtype=results.dtype, device=results.device)
    block = min(1024, triton.next_power_of_2(size))
    if num_tokens:
        _sum_choices[(num_tokens, triton.cdiv(size, block))](
            results, residual, out, SIZE=size, TOP_K=top_k, BLOCK=block, **launch_options(starts_early)
        )
    return out
