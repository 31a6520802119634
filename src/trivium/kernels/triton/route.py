"""Which experts each token goes to, and with which share; and the tokens of each expert gathered in tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.triton.early_launch import inputs_are_there, launch_options

PAIRS_AT_ONCE = 128  # that a program brings to their places
TILES_AT_ONCE = 8  # whose experts a program writes down


@triton.jit
def probabilities(logits, NUM_EXPERTS: tl.constexpr):
    """Of each token and expert [T, power of two]; -1 where there is no expert."""
    exists = (tl.arange(0, logits.shape[1]) < NUM_EXPERTS)[None, :]
    score = tl.where(exists, logits, float("-inf"))
    weight = tl.exp(score - tl.max(score, axis=1, keep_dims=True))
    return tl.where(exists, weight / tl.sum(weight, axis=1, keep_dims=True), -1.0)


@triton.jit
def likeliest(probability, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    """(experts, shares) [T, BLOCK_K], likeliest first, and which choice each expert is, of [T, experts]; TOP_K: none."""
    BLOCK_T: tl.constexpr = probability.shape[0]
    BLOCK_E: tl.constexpr = probability.shape[1]
    e = tl.arange(0, BLOCK_E)[None, :]
    choice = tl.arange(0, BLOCK_K)[None, :]
    experts = tl.zeros((BLOCK_T, BLOCK_K), tl.int32)
    shares = tl.zeros((BLOCK_T, BLOCK_K), tl.float32)
    choice_of = tl.full((BLOCK_T, BLOCK_E), TOP_K, tl.int32)
    # One number for both: the bits of a positive float are in its order, and of two equals the lower expert comes first.
    key = (probability.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (BLOCK_E - 1 - e)
    for j in tl.static_range(TOP_K):
        best = tl.max(key, axis=1, keep_dims=True)
        expert = BLOCK_E - 1 - (best & (BLOCK_E - 1)).to(tl.int32)
        experts = tl.where(choice == j, expert, experts)
        shares = tl.where(choice == j, (best >> 32).to(tl.int32).to(tl.float32, bitcast=True), shares)
        choice_of = tl.where(e == expert, j, choice_of)
        key = tl.where(e == expert, -(1 << 62), key)
    if NORMALIZE:
        shares = shares / tl.sum(shares, axis=1, keep_dims=True)
    return experts, shares, choice_of


@triton.jit(do_not_specialize=["num_tokens"])
def _route(
    logits, experts, shares, counts, ranks, num_tokens,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr, COUNTS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    inputs_are_there(EARLY)
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    choice = tl.arange(0, BLOCK_K)[None, :]
    e = tl.arange(0, BLOCK_E)[None, :]
    inside = (token < num_tokens) & (e < NUM_EXPERTS)
    score = tl.load(logits + token * NUM_EXPERTS + e, mask=inside, other=0.0).to(tl.float32)
    chosen, share, _ = likeliest(probabilities(score, NUM_EXPERTS), TOP_K, NORMALIZE, BLOCK_K)
    place = token * TOP_K + choice
    inside = (token < num_tokens) & (choice < TOP_K)
    tl.store(experts + place, chosen, mask=inside)
    tl.store(shares + place, share, mask=inside)
    if COUNTS:
        # The order of tokens within an expert is anyone's; no token's result depends on it.
        rank = tl.atomic_add(counts + chosen, 1, mask=inside)
        tl.store(ranks + place, rank, mask=inside)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _gather(
    experts, counts, ranks, pair_of, expert_of_tile, used_tiles, num_pairs, num_tiles,
    NUM_EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Pairs of (token, choice) to their places; each expert's begin at a multiple of BLOCK_M."""
    e = tl.arange(0, BLOCK_E)
    count = tl.load(counts + e, mask=e < NUM_EXPERTS, other=0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    past = tl.cumsum(tiles, axis=0)  # tiles of this expert and those before it
    if tl.program_id(0) == 0:
        tl.store(used_tiles, tl.sum(tiles, axis=0))
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
    is_mine = before[:, None] == e[None, :]
    past_pairs = tl.sum(tl.where(is_mine, ((past - tiles) * BLOCK_M + count)[None, :], 0), axis=1)
    place = tile[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    tl.store(pair_of + place, -1, mask=(place >= past_pairs[:, None]) & (tile < num_tiles)[:, None])


@dataclass(frozen=True)
class Routed:
    experts: Tensor  # int32 [T, k]
    shares: Tensor  # float32 [T, k]


@dataclass(frozen=True)
class ExpertTiles:
    """Pairs of (token, choice), numbered token * k + choice, in tiles of `rows` that each have one expert.

    There are as many tiles as could be needed.
    """

    rows: int
    pair_of: Tensor  # int32 [tiles * rows]; -1: empty; anything in unused tiles
    expert_of_tile: Tensor  # int32 [tiles], ascending; then -1: unused tiles
    used: Tensor  # int32 [1], how many tiles are used


def empty_routed(num_tokens: int, top_k: int, device: torch.device) -> Routed:
    return Routed(
        experts=torch.empty((num_tokens, top_k), dtype=torch.int32, device=device),
        shares=torch.empty((num_tokens, top_k), dtype=torch.float32, device=device),
    )


def empty_tiles(num_pairs: int, num_experts: int, rows: int, device: torch.device) -> ExpertTiles:
    num_tiles = min(num_pairs, num_experts + num_pairs // rows)
    return ExpertTiles(
        rows=rows,
        pair_of=torch.empty(num_tiles * rows, dtype=torch.int32, device=device),
        expert_of_tile=torch.empty(num_tiles, dtype=torch.int32, device=device),
        used=torch.empty(1, dtype=torch.int32, device=device),
    )


def route(logits: Tensor, top_k: int, normalize: bool, starts_early: bool = False) -> Routed:
    """logits [T, E] -> the top_k likeliest of each token, likeliest first."""
    routed = empty_routed(len(logits), top_k, logits.device)
    if len(logits):
        _launch_route(logits, routed, None, None, normalize, starts_early)
    return routed


def route_to_tiles(logits: Tensor, top_k: int, normalize: bool, rows: int) -> tuple[Routed, ExpertTiles]:
    """As `route`, and the pairs in tiles of `rows`."""
    num_tokens, num_experts = logits.shape
    num_pairs = num_tokens * top_k
    routed = empty_routed(num_tokens, top_k, logits.device)
    tiles = empty_tiles(num_pairs, num_experts, rows, logits.device)
    if num_tokens:
        counts = torch.zeros(num_experts, dtype=torch.int32, device=logits.device)
        ranks = torch.empty(num_pairs, dtype=torch.int32, device=logits.device)
        _launch_route(logits, routed, counts, ranks, normalize, starts_early=False)
        num_tiles = len(tiles.expert_of_tile)
        _gather[(max(triton.cdiv(num_pairs, PAIRS_AT_ONCE), triton.cdiv(num_tiles, TILES_AT_ONCE)),)](
            routed.experts, counts, ranks, tiles.pair_of, tiles.expert_of_tile, tiles.used, num_pairs, num_tiles,
            NUM_EXPERTS=num_experts, BLOCK_M=rows, BLOCK_E=triton.next_power_of_2(num_experts),
            BLOCK_P=PAIRS_AT_ONCE, BLOCK_T=TILES_AT_ONCE,
        )  # fmt: skip
    return routed, tiles


def _launch_route(
    logits: Tensor, routed: Routed, counts: Tensor | None, ranks: Tensor | None, normalize: bool, starts_early: bool
) -> None:
    num_tokens, num_experts = logits.shape
    top_k = routed.experts.shape[1]
    tokens_at_once = (
        1 if num_tokens <= 1024 else 4
    )  # few: all processors share them; many: chains of one hide another's
    _route[(triton.cdiv(num_tokens, tokens_at_once),)](
        logits, routed.experts, routed.shares, counts, ranks, num_tokens,
        NUM_EXPERTS=num_experts, TOP_K=top_k, NORMALIZE=normalize, COUNTS=counts is not None, BLOCK_T=tokens_at_once,
        BLOCK_E=triton.next_power_of_2(num_experts), BLOCK_K=triton.next_power_of_2(top_k), num_warps=1,
        **launch_options(starts_early),
    )  # fmt: skip
