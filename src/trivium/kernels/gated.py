"""activation(gate) * up, the middle of a gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.token_slices import token_slices

Activation = Literal["silu", "gelu_tanh"]

TOLERANCE = 1e-6


def reference(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """gate [T, F], up [T, F] -> [T, F]."""
    result = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    for tokens in token_slices(gate):
        gate32 = gate[tokens].float()
        activated = F.silu(gate32) if activation == "silu" else F.gelu(gate32, approximate="tanh")
        result[tokens] = activated * up[tokens].float()
    return result


def cases(random: Generator) -> Iterator[Case]:
    activations: tuple[Activation, ...] = ("silu", "gelu_tanh")
    for activation in activations:
        for shape in [(1, 13), (1, 1536), (3, 37), (33, 129), (0, 64)]:
            yield Case(f"{activation} {shape}", (normal(random, *shape) * 4, normal(random, *shape), activation))
        wide = normal(random, 3, 10) * 100  # where exp over- and underflows
        yield Case(f"{activation} far out", (wide, normal(random, 3, 10), activation))
        joint = normal(random, 5, 128)  # gate and up of one projection
        yield Case(f"{activation} halves of one projection", (joint[:, :64], joint[:, 64:], activation))
