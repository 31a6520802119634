"""Random numbers without state: a function of the seed and the position.

A sequence that was preempted, moved or batched differently draws the same numbers again.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio: consecutive counters land far apart


def mix(value: int) -> int:
    """The finalizer of splitmix64: every input bit changes about half of the output bits."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int) -> float:
    """In [0, 1), 53 bits."""
    return (mix(mix(seed) + GOLDEN * (position + 1)) >> 11) / (1 << 53)
