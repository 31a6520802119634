"""Random numbers without state: a function of the seed and the position.

A sequence that was preempted, moved or batched differently draws the same numbers again.
"""

from __future__ import annotations

from trivium.types.mix import GOLDEN, mix


def uniform(seed: int, position: int) -> float:
    """In [0, 1), 53 bits."""
    return (mix(mix(seed) + GOLDEN * (position + 1)) >> 11) / (1 << 53)
