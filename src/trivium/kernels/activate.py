"""A function of each element, the middle of a plain feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.token_slices import token_slices

ElementFunction = Literal["gelu", "gelu_tanh", "relu", "silu"]
FUNCTIONS: tuple[ElementFunction, ...] = ("gelu", "gelu_tanh", "relu", "silu")

TOLERANCE = 1e-6


def reference(x: Tensor, function: ElementFunction) -> Tensor:
    """x [T, F] -> [T, F]."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for tokens in token_slices(x):
        result[tokens] = _of_each(x[tokens].float(), function)
    return result


def _of_each(x: Tensor, function: ElementFunction) -> Tensor:
    match function:
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "silu":
            return F.silu(x)


def cases(random: Generator) -> Iterator[Case]:
    for function in FUNCTIONS:
        for shape in [(1, 13), (1, 1536), (3, 37), (33, 129), (0, 64)]:
            yield Case(f"{function} {shape}", (normal(random, *shape) * 4, function))
        yield Case(f"{function} small", (normal(random, 3, 50) * 0.1, function))
        yield Case(f"{function} far out", (normal(random, 3, 10) * 100, function))
