"""RMS norm of rows, statistics in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, weight, out, row_stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * row_stride + i, mask=i < SIZE, other=0.0).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(value * value) / SIZE + eps)
    normed = value * scale * tl.load(weight + i, mask=i < SIZE, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + i, normed.to(out.dtype.element_ty), mask=i < SIZE)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D], weight [D] -> like x, contiguous."""
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if len(rows):
        block = triton.next_power_of_2(size)
        warps = min(16, max(1, block // 512))
        _rms_norm[(len(rows),)](rows, weight, out, rows.stride(0), eps, SIZE=size, BLOCK=block, num_warps=warps)
    return out
