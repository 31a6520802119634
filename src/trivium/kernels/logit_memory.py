"""What a step's logits, and the choice of tokens from them, take in memory, and rows of them taken some at a time to keep that
small, however many they are."""

from __future__ import annotations

from collections.abc import Iterator

# One row of most vocabularies. On an accelerator, where each pass is a launch, 64 rows of a vocabulary of 131,072.
LOGITS_AT_ONCE = 1 << 17
LOGITS_AT_ONCE_ON_DEVICE = 1 << 23
# Fewer would not share the weights that a product reads, nor the threads of a provider.
ROWS_TOGETHER = 16

BYTES_OF_LOGIT = 4  # float32
# Of a logit that the reference works on, as the allocator counts them: 37 where filters are asked for, 56 with typical_p.
REFERENCE_WORK_BYTES = 56


def row_slices(num_rows: int, num_tokens: int, device: str, fewest: int = 1) -> Iterator[slice]:
    """Of rows of `num_tokens` logits, `fewest` or more in each; one slice also of no rows. `device`: torch's type of it."""
    step = max(fewest, _at_once(device) // num_tokens)
    return (slice(first, first + step) for first in range(0, max(1, num_rows), step))


def held_logits(num_rows: int, num_tokens: int) -> int:
    """The most that a step has at once: of all rows, or of some positions of a prompt."""
    return max(num_rows, ROWS_TOGETHER) * num_tokens


def reference_logit_bytes(num_rows: int, num_tokens: int, device: str) -> int:
    """Each as the model gave it and as its row's request changes it, and the work on some of them."""
    held = held_logits(num_rows, num_tokens)
    worked_on = min(held, max(num_tokens, _at_once(device)))
    return held * 2 * BYTES_OF_LOGIT + worked_on * REFERENCE_WORK_BYTES


def _at_once(device: str) -> int:
    return LOGITS_AT_ONCE if device == "cpu" else LOGITS_AT_ONCE_ON_DEVICE
