"""Numbers that a platform can state about this machine, and numbers that it cannot."""

from __future__ import annotations

from trivium.platform.host_memory import usable_memory
from trivium.types.facts import Capabilities
from trivium.types.kv import BYTES_PER_ELEMENT


def what_is_impossible(capabilities: Capabilities) -> str | None:
    """A part of a sentence, or None."""
    unknown = [dtype for dtype in capabilities.dtypes if dtype not in BYTES_PER_ELEMENT]
    if unknown or not capabilities.dtypes:
        return f"it computes in {', '.join(unknown) or 'no dtype'}, and there are {', '.join(BYTES_PER_ELEMENT)}"
    total, free = capabilities.memory_bytes, capabilities.available_bytes
    if not 0 <= free <= total:
        return f"{free} of its {total} bytes of memory are free"
    if total == 0:
        return "it has no memory"
    if capabilities.device == "cpu" and not capabilities.memory_is_dedicated and total > (most := usable_memory()[0]):
        return f"it has {total} bytes of the machine's memory, of which this process may use {most}"
    if capabilities.num_threads < 1:
        return f"it has {capabilities.num_threads} threads"
    return None
