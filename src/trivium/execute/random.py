"""Random numbers without state: a function of the seed and the position.

A sequence that was preempted, moved or batched differently draws the same numbers again.
"""

from __future__ import annotations

import numpy as np

from trivium.types.mix import GOLDEN, mix


def uniform(mixed_seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 in [0, 1), 53 bits, from uint64 `mix(seed)` and int64 positions, element by element."""
    places = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    numbers: np.ndarray = (mix(mixed_seeds + places) >> np.uint64(11)) / (1 << 53)
    return numbers
