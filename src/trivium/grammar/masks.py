"""Masks: for each row, which tokens it may draw next. Memory that two processes share: one writes, one reads."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray


def mask_words(vocab_size: int) -> int:
    """Of a row: bit t % 32 of word t // 32 says whether token t may come next."""
    return -(-vocab_size // 32)


def mask_file(num_rows: int, vocab_size: int) -> int:
    """The descriptor of a file without a name, which takes memory only where it was written."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("trivium-masks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, num_rows * mask_words(vocab_size) * 4)
    return descriptor


def map_masks(descriptor: int, num_rows: int, vocab_size: int) -> NDArray[np.int32]:
    """int32 [num_rows, mask_words]"""
    words = mask_words(vocab_size)
    return np.frombuffer(mmap.mmap(descriptor, num_rows * words * 4), dtype=np.int32).reshape(num_rows, words)


def allowed_tokens(mask: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """bool [vocab_size] of one row's mask."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size).view(np.bool_)
