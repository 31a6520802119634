"""x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.token_slices import token_slices

TOLERANCE = 2e-6


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D], weight [D] -> like x. Statistics in float32; `weight` already holds any + 1."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for tokens in token_slices(x):
        x32 = x[tokens].float()
        scale = torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + eps)
        result[tokens] = x32 * scale * weight.float()
    return result


def cases(random: Generator) -> Iterator[Case]:
    for shape in [(1, 1), (1, 576), (3, 17), (33, 576), (5, 4, 64), (2, 3, 80), (0, 64)]:
        for dtype in (torch.float32, torch.bfloat16):
            yield Case(f"{shape} {dtype}", (normal(random, *shape), normal(random, shape[-1], dtype=dtype), 1e-5))
    yield Case("heads of a wider projection", (normal(random, 4, 3, 128)[:, :2, :64], normal(random, 64), 1e-6))
    yield Case("tiny", (normal(random, 2, 64) * 1e-12, normal(random, 64), 1e-6))
    yield Case("huge", (normal(random, 2, 64) * 1e15, normal(random, 64), 1e-6))
