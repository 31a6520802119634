"""A 64-bit mix that two columns draw their random numbers from: seeds of sequences, and the numbers of each draw."""

from __future__ import annotations

from typing import Any, TypeVar

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio: multiples of it land far apart

Words = TypeVar("Words", int, Any)  # a whole number, or a numpy array of uint64


def mix(value: Words) -> Words:
    """The finalizer of splitmix64: every input bit changes about half of the output bits."""
    value = value & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
