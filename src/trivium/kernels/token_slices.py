"""A step's tokens taken some at a time, where the reference of an op would hold copies of all of them on its way."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

TOKENS_AT_ONCE = 256


def token_slices(x: Tensor) -> Iterator[slice]:
    """Of x [T, ...]; all at once on an accelerator, where each slice is a launch."""
    step = TOKENS_AT_ONCE if x.device.type == "cpu" else max(1, len(x))
    return (slice(first, first + step) for first in range(0, len(x), step))
