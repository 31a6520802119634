"""What the engine has counted of grammars since its start."""

from __future__ import annotations

from msgspec import Struct


class GrammarStats(Struct, frozen=True):
    preparing: int = 0  # requests that wait for their grammar, now
    compiled: int = 0  # grammars
    refused: int = 0  # grammars that are none, are not supported, or went beyond a limit
    reused: int = 0  # requests whose grammar was known
    compile_seconds: float = 0.0  # of those compiled, summed
    mask_wait_seconds: float = 0.0  # that steps stood still for a mask, summed
    late_masks: int = 0  # times a row could not draw with the others, for want of its mask
