"""The norm before a mixture of experts, the router's product, each token's choice and the tiles: few tokens, two launches.

The product is of tokens that are not normed yet, but weighed by the norm: the rest of the norm is one number a token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.triton.early_launch import inputs_are_there, launch_options
from trivium.kernels.triton.route import ExpertTiles, Routed, empty_routed, empty_tiles, likeliest, probabilities

MAX_TOKENS = 16  # of more, one program would choose for too long
TOKENS_AT_ONCE = 16  # in the router's product
INPUTS_AT_ONCE = 256


@triton.jit(do_not_specialize=["num_tokens"])
def _router_parts(
    x, norm, router, parts, squares, num_tokens, x_stride,
    NUM_IN: tl.constexpr, NUM_EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program multiplies BLOCK_K inputs of BLOCK_M tokens: parts [inputs / BLOCK_K, T, E]."""
    part = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    i = part * BLOCK_K + tl.arange(0, BLOCK_K)
    present = m < num_tokens
    inside = (i < NUM_IN)[None, :]
    w = tl.load(router + n[:, None] * NUM_IN + i[None, :], mask=(n < NUM_EXPERTS)[:, None] & inside, other=0.0)
    inputs_are_there(EARLY)
    value = tl.load(x + m.to(tl.int64)[:, None] * x_stride + i[None, :], mask=present[:, None] & inside, other=0.0)
    value = value.to(tl.float32)
    weighed = value * tl.load(norm + i, mask=i < NUM_IN, other=0.0)[None, :]
    sums = tl.dot(weighed.to(w.dtype), tl.trans(w), input_precision="ieee")
    row = part * num_tokens + m
    tl.store(parts + row[:, None] * NUM_EXPERTS + n[None, :], sums, mask=present[:, None] & (n < NUM_EXPERTS)[None, :])
    if tl.program_id(0) == 0:
        tl.store(squares + row, tl.sum(value * value, axis=1), mask=present)


@triton.jit
def _norm_row(x, norm, normed, row, x_stride, eps, NUM_IN: tl.constexpr, BLOCK_IN: tl.constexpr):
    i = tl.arange(0, BLOCK_IN)
    value = tl.load(x + row * x_stride + i, mask=i < NUM_IN, other=0.0).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(value * value) / NUM_IN + eps)
    value = value * scale * tl.load(norm + i, mask=i < NUM_IN, other=0.0)
    tl.store(normed + row * NUM_IN + i, value.to(normed.dtype.element_ty), mask=i < NUM_IN)


@triton.jit
def _logits(
    parts, squares, num_tokens, eps,
    NUM_IN: tl.constexpr, NUM_EXPERTS: tl.constexpr, NUM_PARTS: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """[BLOCK_T, BLOCK_E], of the normed tokens."""
    token = tl.arange(0, BLOCK_T)[:, None]
    e = tl.arange(0, BLOCK_E)[None, :]
    inside = (token < num_tokens) & (e < NUM_EXPERTS)
    sums = tl.zeros((BLOCK_T, BLOCK_E), tl.float32)
    square = tl.zeros((BLOCK_T, 1), tl.float32)
    for part in tl.static_range(NUM_PARTS):
        row = part * num_tokens + token
        sums += tl.load(parts + row * NUM_EXPERTS + e, mask=inside, other=0.0)
        square += tl.load(squares + row, mask=token < num_tokens, other=0.0)
    return sums * tl.math.rsqrt(square / NUM_IN + eps)


@triton.jit
def _lay_tiles(
    choice_of, pair_of, expert_of_tile, used_tiles, num_tokens, num_tiles,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_TILES: tl.constexpr,
):  # fmt: skip
    """choice_of [T, E]: which choice of the token's an expert is. An expert's pairs come in the order of tokens."""
    BLOCK_T: tl.constexpr = choice_of.shape[0]
    token = tl.arange(0, BLOCK_T)[:, None]
    e = tl.arange(0, choice_of.shape[1])
    is_chosen = ((choice_of < TOP_K) & (token < num_tokens)).to(tl.int32)
    rank = tl.cumsum(is_chosen, axis=0) - is_chosen
    count = tl.sum(is_chosen, axis=0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    first = tl.cumsum(tiles, axis=0) - tiles
    used = tl.sum(tiles, axis=0)
    tl.store(used_tiles, used)
    tl.store(pair_of + first[None, :] * BLOCK_M + rank, token * TOP_K + choice_of, mask=is_chosen > 0)
    # What remains of each expert's last tile, which is less than a whole one.
    empty = count[:, None] + tl.arange(0, BLOCK_M)[None, :]
    tl.store(pair_of + first[:, None] * BLOCK_M + empty, -1, mask=empty < (tiles * BLOCK_M)[:, None])
    for j in tl.static_range((BLOCK_T + BLOCK_M - 1) // BLOCK_M):
        tl.store(expert_of_tile + first + j, e, mask=j < tiles)
    tile = tl.arange(0, BLOCK_TILES)
    tl.store(expert_of_tile + tile, -1, mask=(tile >= used) & (tile < num_tiles))


@triton.jit(do_not_specialize=["num_tokens", "num_tiles"])
def _norm_and_choose(
    x, norm, parts, squares, normed, experts, shares, pair_of, expert_of_tile, used_tiles, num_tokens, num_tiles,
    x_stride, eps,
    NUM_IN: tl.constexpr, NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr, BLOCK_IN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The first program chooses for all tokens; each other one norms a token."""
    inputs_are_there(EARLY)
    if tl.program_id(0) > 0:
        _norm_row(x, norm, normed, (tl.program_id(0) - 1).to(tl.int64), x_stride, eps, NUM_IN, BLOCK_IN)
    else:
        logits = _logits(parts, squares, num_tokens, eps, NUM_IN, NUM_EXPERTS, NUM_PARTS, BLOCK_T, BLOCK_E)
        chosen, share, choice_of = likeliest(probabilities(logits, NUM_EXPERTS), TOP_K, NORMALIZE, BLOCK_K)
        token = tl.arange(0, BLOCK_T)[:, None]
        choice = tl.arange(0, BLOCK_K)[None, :]
        inside = (token < num_tokens) & (choice < TOP_K)
        tl.store(experts + token * TOP_K + choice, chosen, mask=inside)
        tl.store(shares + token * TOP_K + choice, share, mask=inside)
        _lay_tiles(choice_of, pair_of, expert_of_tile, used_tiles, num_tokens, num_tiles, TOP_K, BLOCK_M, BLOCK_TILES)


def norm_and_route(
    x: Tensor,
    norm: Tensor,
    eps: float,
    router: Tensor,
    top_k: int,
    normalize: bool,
    rows: int,
    starts_early: bool = False,
) -> tuple[Tensor, Routed, ExpertTiles]:
    """x [T, H], T from 1 to MAX_TOKENS, router [E, H] -> x normed, its likeliest experts, and their pairs in tiles."""
    num_tokens, num_in = x.shape
    num_experts = len(router)
    inputs = max(16, min(INPUTS_AT_ONCE, triton.next_power_of_2(num_in)))
    num_parts = triton.cdiv(num_in, inputs)
    normed = torch.empty((num_tokens, num_in), dtype=x.dtype, device=x.device)
    parts = torch.empty((num_parts, num_tokens, num_experts), dtype=torch.float32, device=x.device)
    squares = torch.empty((num_parts, num_tokens), dtype=torch.float32, device=x.device)
    routed = empty_routed(num_tokens, top_k, x.device)
    tiles = empty_tiles(num_tokens * top_k, num_experts, rows, x.device)
    outputs = 16
    early = launch_options(starts_early)
    _router_parts[(triton.cdiv(num_experts, outputs), num_parts, triton.cdiv(num_tokens, TOKENS_AT_ONCE))](
        x, norm, router, parts, squares, num_tokens, x.stride(0),
        NUM_IN=num_in, NUM_EXPERTS=num_experts, BLOCK_M=TOKENS_AT_ONCE, BLOCK_N=outputs, BLOCK_K=inputs, num_warps=4,
        **early,
    )  # fmt: skip
    _norm_and_choose[(1 + num_tokens,)](
        x, norm, parts, squares, normed, routed.experts, routed.shares, tiles.pair_of, tiles.expert_of_tile, tiles.used,
        num_tokens, len(tiles.expert_of_tile), x.stride(0), eps,
        NUM_IN=num_in, NUM_EXPERTS=num_experts, TOP_K=top_k, NORMALIZE=normalize, NUM_PARTS=num_parts,
        BLOCK_IN=triton.next_power_of_2(num_in), BLOCK_M=rows, BLOCK_T=triton.next_power_of_2(num_tokens),
        BLOCK_E=triton.next_power_of_2(num_experts), BLOCK_K=triton.next_power_of_2(top_k),
        BLOCK_TILES=triton.next_power_of_2(len(tiles.expert_of_tile)), num_warps=max(4, triton.next_power_of_2(num_tokens)),
        **early,
    )  # fmt: skip
    return normed, routed, tiles
