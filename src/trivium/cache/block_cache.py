"""The pool and the prefix tree together: the one place that takes blocks, evicting cached ones when none is free."""

from __future__ import annotations

from trivium.cache.pool import BlockPool
from trivium.cache.prefix_tree import PrefixTree
from trivium.types.kv import KVSpec


class BlockCache:
    def __init__(self, spec: KVSpec, num_blocks: int, prefix_caching: bool = True) -> None:
        self.spec = spec
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_blocks)
        self.tree = PrefixTree(spec)

    def take(self) -> int:
        """A block of the caller's own. There must be one: see `pool.num_available`."""
        if not self.pool.num_free:
            self.tree.drop(self.pool.evict())
        return self.pool.take()
