"""Rotary angles: cos and sin of each token, for every scaling of the frequencies that checkpoints ask for.

Formulas, defaults and the float32 order of operations are those of `transformers`, so that angles agree to the bit
wherever both compute the same sequence.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.models.spec import DynamicScaling, LinearScaling, Llama3Scaling, LongropeScaling, RopeSpec, YarnScaling


class Rotation(NamedTuple):
    cos: Tensor  # float32 [T, dim / 2]
    sin: Tensor  # float32 [T, dim / 2]


class Rope:
    """Angles for positions below `max_position`.

    Most scalings fix the frequencies, so cos and sin of all positions are computed once. Dynamic NTK and longrope
    choose them by the length of the sequence, so they are computed for the tokens of each step.
    """

    def __init__(self, spec: RopeSpec, max_position: int, device: torch.device | str) -> None:
        self._spec = spec
        self._table: Rotation | None = None
        if not isinstance(spec.scaling, DynamicScaling | LongropeScaling):
            positions = torch.arange(max_position, device=device)
            self._table = _rotation(positions, fixed_frequencies(spec, device), attention_factor(spec))

    @property
    def nbytes(self) -> int:
        return 0 if self._table is None else self._table.cos.nbytes + self._table.sin.nbytes

    def rotation(self, positions: Tensor, lengths: Tensor) -> Rotation:
        """positions and lengths int64 [T]; a token's length is that of the sequence it was computed in."""
        if self._table is not None:
            return Rotation(self._table.cos.index_select(0, positions), self._table.sin.index_select(0, positions))
        return _rotation(positions, frequencies_by_length(self._spec, lengths), attention_factor(self._spec))


def rope_table_bytes(spec: RopeSpec, max_position: int) -> int:
    """Of cos and sin of all positions in float32, where the frequencies are fixed."""
    is_fixed = not isinstance(spec.scaling, DynamicScaling | LongropeScaling)
    return 2 * max_position * (spec.dim // 2) * 4 if is_fixed else 0


def _rotation(positions: Tensor, frequencies: Tensor, factor: float) -> Rotation:
    """frequencies [dim / 2], or [T, dim / 2] where they differ by token."""
    angles = positions[:, None].float() * frequencies
    return Rotation(angles.cos() * factor, angles.sin() * factor)


def attention_factor(spec: RopeSpec) -> float:
    """What cos and sin are multiplied by, which sharpens attention over stretched contexts."""
    return spec.scaling.attention_factor if isinstance(spec.scaling, YarnScaling | LongropeScaling) else 1.0


def fixed_frequencies(spec: RopeSpec, device: torch.device | str) -> Tensor:
    """Radians per position, float32 [dim / 2], of a scaling that does not depend on the length."""
    frequencies = 1.0 / (spec.theta ** _exponents(spec.dim, device))
    match spec.scaling:
        case None:
            pass
        case LinearScaling(factor=factor):
            frequencies = frequencies / factor
        case YarnScaling():
            frequencies = _yarn(spec, spec.scaling, device)
        case Llama3Scaling():
            frequencies = _llama3(frequencies, spec.scaling)
        case _:
            raise AssertionError(f"frequencies of {spec.scaling} depend on the length")
    if spec.frequency_factors:
        frequencies = frequencies / torch.tensor(spec.frequency_factors, device=device)
    return frequencies


def frequencies_by_length(spec: RopeSpec, lengths: Tensor) -> Tensor:
    """Radians per position, float32 [T, dim / 2], for tokens of sequences of `lengths` tokens, int64 [T]."""
    exponents = _exponents(spec.dim, lengths.device)
    match spec.scaling:
        case DynamicScaling(factor=factor, original_max_position=original):
            growth = factor * lengths.clamp(min=original) / original - (factor - 1)
            theta = spec.theta * growth ** (spec.dim / (spec.dim - 2))
            return 1.0 / (theta[:, None] ** exponents)
        case LongropeScaling(short_factors=short, long_factors=long, original_max_position=original):
            factors = torch.tensor([short, long], device=lengths.device)
            chosen = factors[(lengths > original).long()]
            return 1.0 / (chosen * spec.theta**exponents)
    raise AssertionError(f"frequencies of {spec.scaling} do not depend on the length")


def _exponents(dim: int, device: torch.device | str) -> Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim


def _yarn(spec: RopeSpec, scaling: YarnScaling, device: torch.device | str) -> Tensor:
    def dimension_of(rotations: float) -> float:
        """The dimension that makes this many turns over the original context."""
        wavelength = scaling.original_max_position / (rotations * 2 * math.pi)
        return spec.dim * math.log(wavelength) / (2 * math.log(spec.theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001  # a step, where the ramp has no width
    dimensions = torch.arange(spec.dim // 2, dtype=torch.float32, device=device)
    kept = 1 - torch.clamp((dimensions - low) / (high - low), 0, 1)
    wavelengths = spec.theta ** _exponents(spec.dim, device)
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    original, low, high = scaling.original_max_position, scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    is_long, is_short = wavelengths > original / low, wavelengths < original / high
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    stretched = torch.where(is_long, frequencies / scaling.factor, frequencies)
    return torch.where(is_long | is_short, stretched, between)
