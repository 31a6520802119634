"""(x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.token_slices import token_slices

TOLERANCE = 2e-6


def reference(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x [T, D], weight and bias [D] -> like x. Statistics in float32."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for tokens in token_slices(x):
        result[tokens] = F.layer_norm(x[tokens].float(), weight.shape, weight.float(), bias.float(), eps)
    return result


def cases(random: Generator) -> Iterator[Case]:
    for shape in [(1, 1), (1, 384), (3, 17), (33, 384), (2, 80), (0, 64)]:
        for dtype in (torch.float32, torch.bfloat16):
            width = shape[-1]
            weight, bias = normal(random, width, dtype=dtype), normal(random, width, dtype=dtype)
            yield Case(f"{shape} {dtype}", (normal(random, *shape), weight, bias, 1e-12))
    weight, bias = normal(random, 64), normal(random, 64)
    # The mean is exact to 1e-7 of itself, and is 1,000 times what is left when it is taken away; weights are up to 3.
    yield Case("far from zero", (normal(random, 3, 64) + 1000, weight, bias, 1e-5), tolerance=3e-4)
    yield Case("huge", (normal(random, 2, 64) * 1e15, weight, bias, 1e-5))
