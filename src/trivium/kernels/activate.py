"""A function of each element, the middle of a plain feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal

ElementFunction = Literal["gelu", "gelu_tanh", "relu", "silu"]
FUNCTIONS: tuple[ElementFunction, ...] = ("gelu", "gelu_tanh", "relu", "silu")

TOLERANCE = 1e-6


def reference(x: Tensor, function: ElementFunction) -> Tensor:
    """x [T, F] -> [T, F]."""
    x32 = x.float()
    match function:
        case "gelu":
            y = F.gelu(x32)
        case "gelu_tanh":
            y = F.gelu(x32, approximate="tanh")
        case "relu":
            y = F.relu(x32)
        case "silu":
            y = F.silu(x32)
    return y.to(x.dtype)


def cases(random: Generator) -> Iterator[Case]:
    for function in FUNCTIONS:
        for shape in [(1, 13), (1, 1536), (3, 37), (33, 129), (0, 64)]:
            yield Case(f"{function} {shape}", (normal(random, *shape) * 4, function))
        yield Case(f"{function} small", (normal(random, 3, 50) * 0.1, function))
        yield Case(f"{function} far out", (normal(random, 3, 10) * 100, function))
