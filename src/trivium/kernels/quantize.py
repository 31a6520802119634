"""Activations as the integer kernels see them: whole numbers of 8 bits, a scale for each unit of columns, and a second digit where
a unit's largest value is far above most others (native/src/packed.h)."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 120  # see largest_quantized of native/src/packed.h
STEPS_OF_A_DIGIT = 240
LEAST_MEAN_SQUARE = 225


def quantized_activations(x: Tensor, unit_columns: int) -> Tensor:
    """x [T, in] float32, rounded to the nearest value that its unit can hold, halves to even. Units have as many columns as the
    blocks of the weights that x is multiplied with."""
    units = x.view(len(x), -1, unit_columns)
    magnitude = units.abs().amax(dim=-1, keepdim=True)
    # One division, as in the kernels; a number over a tensor would be a reciprocal and a product, rounded twice.
    inverse = torch.where(magnitude > 0, torch.full_like(magnitude, LARGEST) / magnitude, 0.0)
    digits = (units * inverse).round()
    rest = units.double() * inverse.double() - digits.double()
    second_digits = (rest.float() * STEPS_OF_A_DIGIT).round() / STEPS_OF_A_DIGIT
    has_second = digits.square().mean(dim=-1, keepdim=True) < LEAST_MEAN_SQUARE
    return (torch.where(has_second, digits + second_digits, digits) * (magnitude / LARGEST)).view(x.shape)
