"""The pool and the prefix tree together: the one place that takes blocks, evicting cached ones when none is free."""

from __future__ import annotations

import sys

from trivium.cache.pool import BlockPool
from trivium.cache.prefix_tree import PrefixTree
from trivium.types.kv import KVSpec, blocks_needed


class BlockCache:
    """Of `easy_blocks` (None: all) cached ones are kept as long as there are free ones. Beyond, where memory that was
    never written would be used, they are evicted first: the cache grows with what runs, not with what has run."""

    def __init__(
        self, spec: KVSpec, num_blocks: int, prefix_caching: bool = True, easy_blocks: int | None = None
    ) -> None:
        self.spec = spec
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_blocks)
        self._easy_blocks = num_blocks if easy_blocks is None else easy_blocks
        self.tree = PrefixTree(spec)
        self.windows = [(g, group.window) for g, group in enumerate(spec.groups) if group.window is not None]
        # Sliding groups give back first: without their blocks a shorter prefix may still be of use.
        self.release_order = sorted(range(len(spec.groups)), key=lambda g: spec.groups[g].window is None)
        # Most blocks that a sequence holds in each group while it advances token by token, however long it grows.
        self.most_blocks = [blocks_needed((group,), spec.block_size, sys.maxsize, 1) for group in spec.groups]

    def take(self) -> int:
        """A block of the caller's own. There must be one: see `pool.num_available`."""
        pool = self.pool
        if (pool.num_cached and pool.would_touch and pool.num_touched >= self._easy_blocks) or not pool.num_free:
            self.tree.evict(pool.evict())
        return pool.take()

    def blocks_ahead(self, count: int) -> int:
        """Blocks that were ever taken, and up to `count` more of those that are easily taken."""
        touched = self.pool.num_touched
        return max(touched, min(touched + count, self._easy_blocks))

    def forget(self) -> None:
        """No block that nobody holds will be reused."""
        while self.pool.num_cached:
            self.tree.evict(self.pool.evict())
