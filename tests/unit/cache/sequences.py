"""Small makers for cache tests: specs, and tables of a sequence that has computed its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.cache.block_cache import BlockCache
from trivium.cache.tables import BlockTables
from trivium.types.kv import KVGroup, KVSpec


def spec_of(*windows: int | None, block_size: int = 4) -> KVSpec:
    groups = tuple(KVGroup(layers=(layer,), window=window) for layer, window in enumerate(windows or (None,)))
    return KVSpec(block_size, groups, num_kv_heads=1, head_dim=1, dtype="float32")


def computed(cache: BlockCache, tokens: Sequence[int], salt: str = "") -> BlockTables:
    """A sequence that has computed all its tokens, in one chunk, from whatever prefix was cached."""
    tables = BlockTables(cache)
    start = tables.adopt(salt, tokens)
    advance(tables, tokens, start, len(tokens))
    return tables


def advance(tables: BlockTables, tokens: Sequence[int], start: int, end: int) -> None:
    assert tables.furthest(start, end) == end, "the pool of this test is too small"
    tables.reserve(start, end)
    if end >= tables.next_full:
        tables.publish(tokens, end)
    if end >= tables.next_slide:
        tables.slide(end)


def num_cached(cache: BlockCache, tokens: Sequence[int], salt: str = "") -> int:
    """Tokens of the longest cached prefix."""
    return len(cache.tree.match(salt, tokens)) * cache.spec.block_size
