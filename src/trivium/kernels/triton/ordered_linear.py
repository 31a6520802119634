"""Linear layers whose sums have one order, whatever the number of rows: each row's result is the same to the bit alone and
among others. Tiles depend on the weight alone, and every row goes through the same instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class OrderedTiles:
    rows: int
    outputs: int
    inputs: int  # of one turn of the loop
    warps: int
    stages: int


@triton.jit(do_not_specialize=["num_rows"])
def _ordered_linear(
    x, weight, bias, residual, out, num_rows, x_stride,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs have the same outputs of neighbouring rows, and read their weights together.
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    present = (m < num_rows)[:, None]
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    # The last programs compute some outputs twice rather than reading past the weight.
    weight_rows = weight + tl.minimum(n, NUM_OUT - 1).to(tl.int64)[:, None] * NUM_IN
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
        i = (k + lane)[None, :]
        if NUM_IN % BLOCK_K == 0:
            value = tl.load(x_rows + i, mask=present, other=0.0)
            w = tl.load(weight_rows + i)
        else:
            value = tl.load(x_rows + i, mask=present & (i < NUM_IN), other=0.0)
            w = tl.load(weight_rows + i, mask=i < NUM_IN, other=0.0)
        sums = tl.dot(value, tl.trans(w), sums, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < NUM_OUT, other=0.0).to(tl.float32)[None, :]
    inside = present & (n < NUM_OUT)[None, :]
    place = m.to(tl.int64)[:, None] * NUM_OUT + n[None, :]
    if ADDS:
        sums += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=inside)


def ordered_linear(
    x: Tensor,
    weight: Tensor,
    tiles: OrderedTiles,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x [T, in], weight [out, in], contiguous -> [T, out] of `dtype` (None: that of x), contiguous; in `out` where given.

    `residual` [T, out], contiguous, is added last.
    """
    num_rows, num_in = x.shape
    num_out = weight.shape[0]
    out = torch.empty((num_rows, num_out), dtype=dtype or x.dtype, device=x.device) if out is None else out
    if num_rows:
        _ordered_linear[(triton.cdiv(num_rows, tiles.rows), triton.cdiv(num_out, tiles.outputs))](
            x, weight, bias, residual, out, num_rows, x.stride(0),
            NUM_IN=num_in, NUM_OUT=num_out, HAS_BIAS=bias is not None, ADDS=residual is not None,
            BLOCK_M=tiles.rows, BLOCK_N=tiles.outputs, BLOCK_K=tiles.inputs, STAGES=tiles.stages, num_warps=tiles.warps,
        )  # fmt: skip
    return out
