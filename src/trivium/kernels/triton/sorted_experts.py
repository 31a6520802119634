"""A mixture of gated feed-forward layers over tiles of tokens that were gathered by expert.

The copy engine fetches the weights by tensor descriptors, and a program goes from tile to tile, so that the next one's
weights are on their way while a result is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from trivium.kernels.gated import Activation
from trivium.kernels.triton.activation import activate
from trivium.kernels.triton.early_launch import inputs_are_there, launch_options
from trivium.kernels.triton.experts import sum_choices
from trivium.kernels.triton.route import ExpertTiles, Routed

ALIGNMENT = 16  # bytes, of every row that a descriptor describes


@dataclass(frozen=True)
class SortedTiles:
    rows: int  # pairs of token and expert
    outputs: int
    inputs: int
    warps: int
    stages: int
    group: int  # tiles of rows that are done for all outputs before others are begun
    programs: int  # of one multiprocessor; 0: one for each tile
    # Few rows stand where the matrix unit takes few: outputs are its rows then.
    swaps: bool = False


@triton.jit
def _place_of(item, num_tiles, NUM_N: tl.constexpr, GROUP: tl.constexpr):
    """(tile of rows, tile of outputs): GROUP tiles of rows with all outputs before others, so that both stay in L2."""
    first = item // (GROUP * NUM_N) * GROUP
    size = tl.minimum(num_tiles - first, GROUP)
    inner = item % (GROUP * NUM_N)
    return first + inner % size, inner // size


@triton.jit(do_not_specialize=["num_programs"])
def _sorted_up(
    x, gate_up, pair_of, expert_of_tile, used_tiles, middle, x_stride, num_programs,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, TOP_K: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
    BY_PAIR: tl.constexpr, SWAPS: tl.constexpr, FLATTENS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    inputs_are_there(EARLY)
    NUM_N: tl.constexpr = (NUM_OUT + BLOCK_N - 1) // BLOCK_N
    num_tiles = tl.load(used_tiles)
    for item in tl.range(tl.program_id(0), num_tiles * NUM_N, num_programs, flatten=FLATTENS):
        tile, column = _place_of(item, num_tiles, NUM_N, GROUP)
        place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row = tl.load(expert_of_tile + tile) * (2 * NUM_OUT) + column * BLOCK_N
        pair = tl.load(pair_of + place)
        present = (pair >= 0)[:, None]
        x_rows = x + (tl.maximum(pair, 0) // TOP_K).to(tl.int64)[:, None] * x_stride
        if SWAPS:
            gate_sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            up_sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        else:
            gate_sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            up_sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
            i = (k + tl.arange(0, BLOCK_K))[None, :]
            if NUM_IN % BLOCK_K == 0:
                value = tl.load(x_rows + i, mask=present, other=0.0)
            else:
                value = tl.load(x_rows + i, mask=present & (i < NUM_IN), other=0.0)
            gate = gate_up.load([row, k])
            up = gate_up.load([row + NUM_OUT, k])
            if SWAPS:
                gate_sums = tl.dot(gate, tl.trans(value), gate_sums, input_precision="ieee")
                up_sums = tl.dot(up, tl.trans(value), up_sums, input_precision="ieee")
            else:
                gate_sums = tl.dot(value, tl.trans(gate), gate_sums, input_precision="ieee")
                up_sums = tl.dot(value, tl.trans(up), up_sums, input_precision="ieee")
        result = activate(gate_sums, ACTIVATION) * up_sums
        if SWAPS:
            result = tl.trans(result)
        n = column * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (n < NUM_OUT)[None, :]
        if BY_PAIR:
            place = pair
            inside = inside & present
        target = middle + place.to(tl.int64)[:, None] * NUM_OUT + n[None, :]
        tl.store(target, result.to(middle.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_programs"])
def _sorted_down(
    middle, down, pair_of, expert_of_tile, used_tiles, shares, results, num_programs,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
    SWAPS: tl.constexpr, FLATTENS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    inputs_are_there(EARLY)
    NUM_N: tl.constexpr = (NUM_OUT + BLOCK_N - 1) // BLOCK_N
    num_tiles = tl.load(used_tiles)
    for item in tl.range(tl.program_id(0), num_tiles * NUM_N, num_programs, flatten=FLATTENS):
        tile, column = _place_of(item, num_tiles, NUM_N, GROUP)
        row = tl.load(expert_of_tile + tile) * NUM_OUT + column * BLOCK_N
        if SWAPS:
            sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        else:
            sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
            value = middle.load([tile * BLOCK_M, k])
            weight = down.load([row, k])
            if SWAPS:
                sums = tl.dot(weight, tl.trans(value), sums, input_precision="ieee")
            else:
                sums = tl.dot(value, tl.trans(weight), sums, input_precision="ieee")
        if SWAPS:
            sums = tl.trans(sums)
        pair = tl.load(pair_of + tile * BLOCK_M + tl.arange(0, BLOCK_M))
        share = tl.load(shares + pair, mask=pair >= 0, other=0.0)
        n = column * BLOCK_N + tl.arange(0, BLOCK_N)
        target = results + pair.to(tl.int64)[:, None] * NUM_OUT + n[None, :]
        inside = (pair >= 0)[:, None] & (n < NUM_OUT)[None, :]
        tl.store(target, (sums * share[:, None]).to(results.dtype.element_ty), mask=inside)


def can_be_described(*tensors: Tensor) -> bool:
    """Whether the copy engine can fetch tiles of them, whose rows must lie one after the other."""
    return all(
        tensor.is_contiguous()
        and tensor.data_ptr() % ALIGNMENT == 0
        and tensor.shape[-1] * tensor.element_size() % ALIGNMENT == 0
        for tensor in tensors
    )


def sorted_experts(
    x: Tensor,
    routed: Routed,
    tiles: ExpertTiles,
    gate_up: Tensor,
    down: Tensor,
    activation: Activation,
    residual: Tensor,
    up_tiles: SortedTiles,
    down_tiles: SortedTiles,
    num_processors: int,
    starts_early: bool = False,
) -> Tensor:
    """x [T, H], normed, gate_up [E, 2F, H], down [E, H, F] -> residual + the experts of x [T, H].

    A token's results are added in the order of its choices, likeliest first.
    """
    top_k = routed.experts.shape[1]
    middle = sorted_up(x, tiles, gate_up, activation, top_k, up_tiles, num_processors, starts_early=starts_early)
    results = sorted_down(middle, tiles, down, routed.shares, down_tiles, num_processors, starts_early)
    return sum_choices(results, residual, top_k, starts_early)


def sorted_up(
    x: Tensor,
    tiles: ExpertTiles,
    gate_up: Tensor,
    activation: Activation,
    top_k: int,
    cut: SortedTiles,
    num_processors: int,
    by_pair: bool = False,
    starts_early: bool = False,
) -> Tensor:
    """x [T, H] -> activation(gate) * up of each pair at its place in the tiles [tiles * rows, F].

    `by_pair`: in the order of pairs instead [T * k, F].
    """
    num_in, wide = x.shape[1], gate_up.shape[1] // 2
    assert tiles.rows == cut.rows
    num_places = len(tiles.pair_of)
    middle = torch.empty((len(x) * top_k if by_pair else num_places, wide), dtype=x.dtype, device=x.device)
    num_programs = _num_programs(cut, len(tiles.expert_of_tile), wide, num_processors)
    _sorted_up[(num_programs,)](
        x, _described(gate_up, cut.outputs, cut.inputs), tiles.pair_of, tiles.expert_of_tile, tiles.used, middle,
        x.stride(0), num_programs,
        NUM_IN=num_in, NUM_OUT=wide, TOP_K=top_k, ACTIVATION=activation, BY_PAIR=by_pair, **_cut(cut),
        **launch_options(starts_early),
    )  # fmt: skip
    return middle


def sorted_down(
    middle: Tensor,
    tiles: ExpertTiles,
    down: Tensor,
    shares: Tensor,
    cut: SortedTiles,
    num_processors: int,
    starts_early: bool = False,
) -> Tensor:
    """middle [tiles * rows, F], down [E, H, F] -> each pair's result times its share [T * k, H]."""
    num_out, wide = down.shape[1:]
    assert tiles.rows == cut.rows
    results = torch.empty((shares.numel(), num_out), dtype=middle.dtype, device=middle.device)
    num_programs = _num_programs(cut, len(tiles.expert_of_tile), num_out, num_processors)
    _sorted_down[(num_programs,)](
        _described(middle, cut.rows, cut.inputs), _described(down, cut.outputs, cut.inputs), tiles.pair_of,
        tiles.expert_of_tile, tiles.used, shares, results, num_programs,
        NUM_IN=wide, NUM_OUT=num_out, **_cut(cut), **launch_options(starts_early),
    )  # fmt: skip
    return results


def _described(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Its last dimension as columns, all others as rows."""
    return TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), [rows, columns])


def _num_programs(tiles: SortedTiles, num_tiles: int, num_out: int, num_processors: int) -> int:
    items = num_tiles * triton.cdiv(num_out, tiles.outputs)
    return min(items, tiles.programs * num_processors) if tiles.programs else items


def _cut(tiles: SortedTiles) -> dict[str, int | bool]:
    return {
        "BLOCK_M": tiles.rows,
        "BLOCK_N": tiles.outputs,
        "BLOCK_K": tiles.inputs,
        "GROUP": tiles.group,
        "STAGES": tiles.stages,
        "SWAPS": tiles.swaps,
        "FLATTENS": bool(tiles.programs),
        "num_warps": tiles.warps,
    }
