"""Seeds of what tests draw: the same in every run, so that none fails by chance; with FRESH_SEEDS=1 others in each run."""

from __future__ import annotations

import os
import zlib


def drawn_seed(name: str) -> int:
    """24 bits. `name`: of the test, and of the draw where it has several. The seed is shown where the test fails."""
    seed = int.from_bytes(os.urandom(3)) if os.environ.get("FRESH_SEEDS") else zlib.crc32(name.encode()) >> 8
    print(f"seed {seed}")
    return seed
