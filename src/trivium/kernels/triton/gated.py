"""activation(gate) * up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.kernels.gated import Activation
from trivium.kernels.triton.activation import activate


@triton.jit
def _gated(gate, up, out, gate_stride, up_stride, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + row * gate_stride + i, mask=i < SIZE, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + i, mask=i < SIZE, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + i, (activate(g, ACTIVATION) * u).to(out.dtype.element_ty), mask=i < SIZE)


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """gate and up [T, F], whose rows may be parts of wider ones -> [T, F]."""
    rows, size = gate.shape
    out = torch.empty((rows, size), dtype=gate.dtype, device=gate.device)
    if rows:
        block = min(2048, triton.next_power_of_2(size))
        grid = (rows, triton.cdiv(size, block))
        _gated[grid](gate, up, out, gate.stride(0), up.stride(0), SIZE=size, ACTIVATION=activation, BLOCK=block)
    return out
