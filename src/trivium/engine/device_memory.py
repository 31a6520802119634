"""What is said where a device has too little memory: what was needed, what there is, and who holds the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trivium.platform.contract import Platform
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities

SMALLER_MODEL = "end what holds the rest, or take a smaller or more quantized model"
SMALLER_STEPS = "lower gpu_memory_utilization, kv_cache_bytes, max_num_batched_tokens or max_num_seqs"


def free_memory(capabilities: Capabilities) -> str:
    """One clause, with the numbers."""
    holders = dict(capabilities.sources).get("held_by", "")
    return (
        f"{capabilities.available_bytes >> 20} of the {capabilities.memory_bytes >> 20} MiB of {capabilities.name} are free"
        + (f" (held by {holders})" if holders else "")
    )


def lack_of_memory(what: str, needed: int, capabilities: Capabilities, remedy: str) -> ConfigError:
    return ConfigError(f"{what} take {needed >> 20} MiB, and {free_memory(capabilities)}: {remedy}")


@contextmanager
def memory_for(what: str, needed: int, platform: Platform, remedy: str) -> Iterator[None]:
    """Around work of the start: a device that has no room for it is told of as a person wants to read it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # Without its traceback, whose frames would keep what was laid so far.
        cause = error.with_traceback(None)
        platform.give_back_unused()
        raise lack_of_memory(what, needed, platform.capabilities(), remedy) from cause
