"""An order in which requests that begin alike run together, so that the engine computes what they share once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

# What a prompt is rendered from, in the order in which templates write it.
PARTS = ("model", "instructions", "tools", "chat_template_kwargs", "prompt", "messages", "input")
CHUNK_BYTES = 256  # of the parts' JSON: some 60 tokens; what two requests share is seen in these steps
HASH_BYTES = 8


def prefix_key(body: Mapping[str, Any]) -> bytes:
    """Sorting by it puts requests next to those with which they share the longest beginning.

    One short hash for each chunk instead of the chunk, so that the keys of a large batch fit in memory.
    """
    text = msgspec.json.encode([body.get(part) for part in PARTS])
    return b"".join(
        hashlib.blake2b(text[start : start + CHUNK_BYTES], digest_size=HASH_BYTES).digest()
        for start in range(0, len(text), CHUNK_BYTES)
    )
