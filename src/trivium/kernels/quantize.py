"""Activations as the integer kernels see them: whole numbers of 8 bits, a scale for each group of 32 columns."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP_COLUMNS = 32
LARGEST = 120  # see largest_quantized of native/src/packed.h


def quantized_activations(x: Tensor) -> Tensor:
    """x [T, in] float32, rounded to the nearest value that its group can hold, halves to even."""
    groups = x.view(len(x), -1, GROUP_COLUMNS)
    magnitude = groups.abs().amax(dim=-1, keepdim=True)
    # One division, as in the kernels; a number over a tensor would be a reciprocal and a product, rounded twice.
    inverse = torch.where(magnitude > 0, torch.full_like(magnitude, LARGEST) / magnitude, 0.0)
    return ((groups * inverse).round() * (magnitude / LARGEST)).view(x.shape)
