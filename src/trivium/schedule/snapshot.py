"""Who runs and waits, and how the prefix tree looks: for people to watch, without a word of what is said."""

from __future__ import annotations

from msgspec import Struct

from trivium.cache.outline import TreeOutline

# What a page can show, and what can be told between two steps without a step's being late: about 1 ms.
MAX_SEQUENCES = 64
MAX_CHAINS = 96
MAX_BLOCKS = 2048


class SequenceView(Struct, frozen=True):
    """Counts of tokens."""

    row: int  # -1: it waits
    prompt: int
    cached: int  # of the prompt, found in the prefix tree
    computed: int
    generated: int
    max_generated: int


class Snapshot(Struct, frozen=True):
    sequences: tuple[SequenceView, ...] = ()  # running ones in the order of their rows, then the first that wait
    prefixes: TreeOutline = TreeOutline()
