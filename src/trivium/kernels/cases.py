"""Inputs to try an op on, fresh at each call, and the measure of how far a provider is from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.weights import QuantizedTensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Byte offsets of the float16 scales inside a block; all other bytes of a block may be anything.
_SCALE_OFFSETS = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


@dataclass(frozen=True)
class Case:
    name: str
    arguments: tuple[Any, ...]
    tolerance: float | None = None  # where the op's own is not meant


def error(got: Tensor, want: Tensor) -> float:
    """The largest difference, as a fraction of the largest magnitude in `want`."""
    if want.numel() == 0:
        return 0.0
    got, want = got.double(), want.double()
    if not torch.isfinite(got).all():
        return float("inf")
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


def normal(random: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """On the device of `random`."""
    return torch.randn(shape, generator=random, device=random.device).to(dtype)


def quantized(random: Generator, type: str, *shape: int, scale: float = 0.01) -> QuantizedTensor:
    """Random valid blocks whose float16 scales (or plain values) are up to `scale`, of either sign."""
    if type in _PLAIN:
        values = _either_sign(random, *shape) * scale
        return QuantizedTensor(type, values.to(_PLAIN[type]).view(torch.uint8), shape)
    kind = QUANT_TYPES[type]
    num_blocks = shape[-1] // kind.block_elements
    data = torch.randint(256, (*shape[:-1], num_blocks, kind.block_bytes), generator=random, dtype=torch.uint8)
    for offset in _SCALE_OFFSETS[type]:
        scales = _either_sign(random, *data.shape[:-1], 1) * scale
        data[..., offset : offset + 2] = scales.half().view(torch.uint8)
    return QuantizedTensor(type, data.flatten(-2), shape)


def _either_sign(random: Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=random) * 2 - 1
