"""Which experts each token goes to, and with which share; and the tokens of each expert gathered in tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _route(
    logits, experts, shares, counts, ranks,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr, COUNTS: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK_E)
    choice = tl.arange(0, BLOCK_K)
    score = tl.load(logits + token * NUM_EXPERTS + e, mask=e < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    weight = tl.exp(score - tl.max(score, axis=0))
    probability = weight / tl.sum(weight, axis=0)
    left = tl.where(e < NUM_EXPERTS, probability, -1.0)
    chosen = tl.zeros((BLOCK_K,), tl.int32)
    share = tl.zeros((BLOCK_K,), tl.float32)
    for j in tl.static_range(TOP_K):
        best = tl.argmax(left, axis=0)
        chosen = tl.where(choice == j, best, chosen)
        share = tl.where(choice == j, tl.max(left, axis=0), share)
        left = tl.where(e == best, -1.0, left)
    if NORMALIZE:
        share = share / tl.sum(share, axis=0)
    place = token * TOP_K + choice
    tl.store(experts + place, chosen, mask=choice < TOP_K)
    tl.store(shares + place, share, mask=choice < TOP_K)
    if COUNTS:
        # The order of tokens within an expert is anyone's; no token's result depends on it.
        rank = tl.atomic_add(counts + chosen, 1, mask=choice < TOP_K)
        tl.store(ranks + place, rank, mask=choice < TOP_K)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _gather(
    experts, counts, ranks, pair_of, expert_of_tile, num_pairs, num_tiles,
    NUM_EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Pairs of (token, choice) to their places; each expert's begin at a multiple of BLOCK_M."""
    e = tl.arange(0, BLOCK_E)
    count = tl.load(counts + e, mask=e < NUM_EXPERTS, other=0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    past = tl.cumsum(tiles, axis=0)  # tiles of this expert and those before it
    pair = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    expert = tl.load(experts + pair, mask=pair < num_pairs, other=0)
    is_mine = expert[:, None] == e[None, :]
    first_tile = tl.sum(tl.where(is_mine, (past - tiles)[None, :], 0), axis=1)
    rank = tl.load(ranks + pair, mask=pair < num_pairs, other=0)
    tl.store(pair_of + first_tile * BLOCK_M + rank, pair, mask=pair < num_pairs)
    tile = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    # Experts whose tiles end at or before a tile come before its own; past the last there is none.
    before = tl.sum((past[None, :] <= tile[:, None]).to(tl.int32), axis=1)
    tl.store(expert_of_tile + tile, tl.where(before < NUM_EXPERTS, before, -1), mask=tile < num_tiles)


@dataclass(frozen=True)
class Routed:
    experts: Tensor  # int32 [T, k]
    shares: Tensor  # float32 [T, k]


@dataclass(frozen=True)
class ExpertTiles:
    """Pairs of (token, choice), numbered token * k + choice, in tiles of `rows` that each have one expert."""

    rows: int
    pair_of: Tensor  # int32 [tiles * rows]; -1: empty
    expert_of_tile: Tensor  # int32 [tiles]; -1: an unused tile


def route(logits: Tensor, top_k: int, normalize: bool) -> Routed:
    """logits [T, E] -> the top_k likeliest of each token, likeliest first."""
    experts, shares = _empty_routed(logits, top_k)
    if len(logits):
        _launch_route(logits, experts, shares, None, None, normalize)
    return Routed(experts, shares)


def route_to_tiles(logits: Tensor, top_k: int, normalize: bool, rows: int) -> tuple[Routed, ExpertTiles]:
    """As `route`, and the pairs in tiles of `rows`. The number of tiles is the most that there can be."""
    num_tokens, num_experts = logits.shape
    num_pairs = num_tokens * top_k
    experts, shares = _empty_routed(logits, top_k)
    counts = torch.zeros(num_experts, dtype=torch.int32, device=logits.device)
    ranks = torch.empty(num_pairs, dtype=torch.int32, device=logits.device)
    num_tiles = min(num_pairs, num_experts + num_pairs // rows)
    pair_of = torch.full((num_tiles * rows,), -1, dtype=torch.int32, device=logits.device)
    expert_of_tile = torch.empty(num_tiles, dtype=torch.int32, device=logits.device)
    if num_tokens:
        _launch_route(logits, experts, shares, counts, ranks, normalize)
        pairs_at_once = 128
        programs = triton.cdiv(num_pairs, pairs_at_once)
        _gather[(programs,)](
            experts, counts, ranks, pair_of, expert_of_tile, num_pairs, num_tiles,
            NUM_EXPERTS=num_experts, BLOCK_M=rows, BLOCK_E=triton.next_power_of_2(num_experts),
            BLOCK_P=pairs_at_once, BLOCK_T=triton.next_power_of_2(triton.cdiv(num_tiles, programs)),
        )  # fmt: skip
    return Routed(experts, shares), ExpertTiles(rows, pair_of, expert_of_tile)


def _empty_routed(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    shape = (len(logits), top_k)
    return (
        torch.empty(shape, dtype=torch.int32, device=logits.device),
        torch.empty(shape, dtype=torch.float32, device=logits.device),
    )


def _launch_route(
    logits: Tensor, experts: Tensor, shares: Tensor, counts: Tensor | None, ranks: Tensor | None, normalize: bool
) -> None:
    num_experts, top_k = logits.shape[1], experts.shape[1]
    _route[(len(logits),)](
        logits, experts, shares, counts, ranks,
        NUM_EXPERTS=num_experts, TOP_K=top_k, NORMALIZE=normalize, COUNTS=counts is not None,
        BLOCK_E=triton.next_power_of_2(num_experts), BLOCK_K=triton.next_power_of_2(top_k), num_warps=1,
    )  # fmt: skip
