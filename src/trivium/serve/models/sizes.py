"""How much memory a model takes, and how much all together may take."""

from __future__ import annotations

import re

from trivium.config.resolve import DEFAULT_KV_BYTES_AT_MOST
from trivium.platform.host_memory import usable_memory
from trivium.types.errors import ConfigError

# An engine without weights: Python, torch and the kernels. Seen: 185 MiB of its own and 90 MiB of shared libraries.
PROCESS_BYTES = 256 << 20

# The KV cache of a model that comes and goes has a size from the start, so that what it takes is known before it comes:
# as large as the weights, but with room for some prompts, and never more than an engine would choose by itself.
LEAST_KV_BYTES = 512 << 20

# Of what is free at the start; the rest is for everybody else.
BUDGET_SHARE = 0.8

UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}  # powers of two, with and without the i of GiB
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)(?:i?b)?", re.IGNORECASE)


def kv_bytes_for(weight_bytes: int) -> int:
    return min(max(weight_bytes, LEAST_KV_BYTES), DEFAULT_KV_BYTES_AT_MOST)


def default_budget() -> int:
    _, available, _ = usable_memory()
    return int(available * BUDGET_SHARE)


def read_size(text: str) -> int:
    """Bytes: 8589934592, 8G, 8GiB, 512M."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no size: it must be like 8G, 512M or a number of bytes")
    return int(float(match[1]) * (1 << UNITS[match[2].lower()]))


def in_mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB".replace(",", " ")
