"""Linear layers of few rows, which only stream their weights: the norm before, the gate, the bias and the residual after
are done on the way, so that a layer is one launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.gated import Activation
from trivium.kernels.triton.activation import activate
from trivium.kernels.triton.early_launch import fetch_to_cache, inputs_are_there, launch_options

MAX_ROWS = 64


@dataclass(frozen=True)
class SkinnyTiles:
    outputs: int  # of one program
    inputs: int  # of one turn of its loop
    warps: int
    stages: int
    fetches_early: bool = True  # the first weights before the inputs are there, where the kernel starts early


@triton.jit
def _elements(pointers, i, NUM_IN: tl.constexpr, BLOCK_K: tl.constexpr):
    """Elements `i` of vectors that begin at `pointers`; 0 from NUM_IN on."""
    if NUM_IN % BLOCK_K == 0:
        return tl.load(pointers + i)
    return tl.load(pointers + i, mask=i < NUM_IN, other=0.0)


@triton.jit
def _single_row(
    x, norm, weight, bias, residual, out, eps,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
    FETCHES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    # The last program computes some outputs twice rather than reading past the weight.
    rows = weight + tl.minimum(n, NUM_OUT - 1).to(tl.int64)[:, None] * NUM_IN
    up_rows = rows + NUM_OUT * NUM_IN
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    if ACTIVATION != "":
        up_sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    begin = 0
    if not FETCHES:
        inputs_are_there(EARLY)
    else:  # the first weights are on their way while x is still being computed
        begin = BLOCK_K
        first = _elements(rows, lane[None, :], NUM_IN, BLOCK_K)
        if ACTIVATION != "":
            first_up = _elements(up_rows, lane[None, :], NUM_IN, BLOCK_K)
        inputs_are_there(EARLY)
        first_value = _elements(x, lane, NUM_IN, BLOCK_K).to(tl.float32)
        if HAS_NORM:
            squares += first_value * first_value
            first_value = first_value * _elements(norm, lane, NUM_IN, BLOCK_K)
        sums += first.to(tl.float32) * first_value[None, :]
        if ACTIVATION != "":
            up_sums += first_up.to(tl.float32) * first_value[None, :]
    for k in tl.range(begin, NUM_IN, BLOCK_K, num_stages=STAGES):
        i = k + lane
        w = _elements(rows, i[None, :], NUM_IN, BLOCK_K)
        value = _elements(x, i, NUM_IN, BLOCK_K).to(tl.float32)
        if ACTIVATION != "":
            up = _elements(up_rows, i[None, :], NUM_IN, BLOCK_K)
        if HAS_NORM:
            squares += value * value
            value = value * _elements(norm, i, NUM_IN, BLOCK_K)
        sums += w.to(tl.float32) * value[None, :]
        if ACTIVATION != "":
            up_sums += up.to(tl.float32) * value[None, :]
    y = tl.sum(sums, axis=1)
    scale = 1.0
    if HAS_NORM:
        scale = tl.math.rsqrt(tl.sum(squares, axis=0) / NUM_IN + eps)
        y = y * scale
    inside = n < NUM_OUT
    if HAS_BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "":
        gate_up = tl.sum(up_sums, axis=1) * scale
        if HAS_BIAS:
            gate_up += tl.load(bias + NUM_OUT + n, mask=inside, other=0.0).to(tl.float32)
        y = activate(y, ACTIVATION) * gate_up
    if ADDS:
        y += tl.load(residual + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _few_rows(
    x, norm, weight, bias, residual, out, num_rows, x_stride, eps,
    NUM_IN: tl.constexpr, NUM_OUT: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
    FETCHES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_K)[None, :]
    rows = weight + tl.minimum(n, NUM_OUT - 1).to(tl.int64)[:, None] * NUM_IN
    up_rows = rows + NUM_OUT * NUM_IN
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if ACTIVATION != "":
        up_sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    # Summed over the inputs at the end: in the loop that would take longer than all else.
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    present = (m < num_rows)[:, None]
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    if FETCHES:
        fetch_to_cache(rows, NUM_IN)
        if ACTIVATION != "":
            fetch_to_cache(up_rows, NUM_IN)
    inputs_are_there(EARLY)
    for k in tl.range(0, NUM_IN, BLOCK_K, num_stages=STAGES):
        i = k + lane
        w = _elements(rows, i, NUM_IN, BLOCK_K)
        if NUM_IN % BLOCK_K == 0:
            value = tl.load(x_rows + i, mask=present, other=0.0)
        else:
            value = tl.load(x_rows + i, mask=present & (i < NUM_IN), other=0.0)
        if ACTIVATION != "":
            up = _elements(up_rows, i, NUM_IN, BLOCK_K)
        if HAS_NORM:
            exact = value.to(tl.float32)
            squares += exact * exact
            value = (exact * _elements(norm, i, NUM_IN, BLOCK_K)).to(x.dtype.element_ty)
        sums = tl.dot(value, tl.trans(w), sums, input_precision="ieee")
        if ACTIVATION != "":
            up_sums = tl.dot(value, tl.trans(up), up_sums, input_precision="ieee")
    inside = present & (n < NUM_OUT)[None, :]
    y = sums
    scale = tl.full((BLOCK_M,), 1.0, tl.float32)
    if HAS_NORM:
        scale = tl.math.rsqrt(tl.sum(squares, axis=1) / NUM_IN + eps)
        y = y * scale[:, None]
    if HAS_BIAS:
        y += tl.load(bias + n, mask=n < NUM_OUT, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION != "":
        gate_up = up_sums * scale[:, None]
        if HAS_BIAS:
            gate_up += tl.load(bias + NUM_OUT + n, mask=n < NUM_OUT, other=0.0).to(tl.float32)[None, :]
        y = activate(y, ACTIVATION) * gate_up
    place = m.to(tl.int64)[:, None] * NUM_OUT + n[None, :]
    if ADDS:
        y += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    tiles: SkinnyTiles,
    *,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    activation: Activation | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    starts_early: bool = False,
) -> Tensor:
    """x [T, in], T up to MAX_ROWS, weight [out, in] -> [T, out] of `dtype` (None: that of x), in `out` where that is given.

    With `norm` [in], x is normed first. With `activation`, the first half of the weight's rows is the gate, the other
    half is multiplied by it, and the result is [T, out / 2]. `residual` [T, out], contiguous, is added last.
    `starts_early`: before the kernel ahead of it has ended, which must not write weights (early_launch.py).
    """
    num_rows, num_in = x.shape
    num_out = weight.shape[0] // (1 if activation is None else 2)
    if out is None:
        out = torch.empty((num_rows, num_out), dtype=dtype or x.dtype, device=x.device)
    grid = (triton.cdiv(num_out, tiles.outputs),)
    flags = {
        "NUM_IN": num_in,
        "NUM_OUT": num_out,
        "HAS_NORM": norm is not None,
        "HAS_BIAS": bias is not None,
        "ADDS": residual is not None,
        "ACTIVATION": activation or "",
        "BLOCK_N": tiles.outputs,
        "STAGES": tiles.stages,
        "num_warps": tiles.warps,
        "FETCHES": starts_early and tiles.fetches_early,
    } | launch_options(starts_early)
    if num_rows == 1:
        block_k = min(tiles.inputs, triton.next_power_of_2(num_in))
        _single_row[grid](x, norm, weight, bias, residual, out, eps, BLOCK_K=block_k, **flags)
    elif num_rows:
        block_k = max(16, min(tiles.inputs, triton.next_power_of_2(num_in)))
        block_m = max(16, triton.next_power_of_2(num_rows))
        _few_rows[grid](
            x, norm, weight, bias, residual, out, num_rows, x.stride(0), eps,
            BLOCK_M=block_m, BLOCK_K=block_k, **flags,
        )  # fmt: skip
    return out
