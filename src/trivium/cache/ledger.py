"""The books of the cache, audited: every block is recounted from its owners and compared with what the pool says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Set

from trivium.cache.block_cache import BlockCache
from trivium.cache.pool import BlockPool, LedgerError
from trivium.cache.prefix_tree import NO_BLOCK
from trivium.cache.tables import BlockTables


def audit(cache: BlockCache, owners: Collection[BlockTables]) -> None:
    """Raises LedgerError unless the pool, the prefix tree and the owners' tables tell the same story."""
    cache.pool.assert_conserved()
    _audit_blocks(cache, owners)
    _audit_tree(cache, owners)


def _audit_blocks(cache: BlockCache, owners: Collection[BlockTables]) -> None:
    pool = cache.pool
    references = Counter(block for tables in owners for block in tables.held_blocks())
    in_tree = Counter(block for node in cache.tree.nodes() for block in node.blocks if block != NO_BLOCK)
    free = Counter(pool.free_blocks())
    cached = Counter(pool.cached_blocks())
    mentioned = references.keys() | in_tree.keys() | cached.keys()
    for block in range(pool.num_blocks) if _differ_beyond(pool, mentioned, free) else range(pool.num_touched):
        if references[block] != pool.references(block):
            raise LedgerError(
                f"block {block} is counted as held {pool.references(block)} times, and {references[block]} tables hold it"
            )
        if in_tree[block] != pool.is_kept(block):
            raise LedgerError(f"block {block} is in {in_tree[block]} nodes, and kept is {pool.is_kept(block)}")
        is_held = references[block] > 0
        if cached[block] != (in_tree[block] and not is_held):
            raise LedgerError(f"block {block} can be evicted {cached[block]} times, but its owners say otherwise")
        if free[block] != (not in_tree[block] and not is_held):
            raise LedgerError(f"block {block} is free {free[block]} times, but its owners say otherwise")


def _differ_beyond(pool: BlockPool, mentioned: Set[int], free: Counter[int]) -> bool:
    """Whether there is anything to tell of the blocks that were never taken, most of a large pool: they are all seen at once,
    and are well where each is free once and nothing else mentions one."""
    never_taken = range(pool.num_touched, pool.num_blocks)
    return not (
        free.keys() >= set(never_taken)
        and free.total() == len(free)
        and pool.is_unused(never_taken)
        and max(mentioned, default=-1) < pool.num_touched
    )


def _audit_tree(cache: BlockCache, owners: Collection[BlockTables]) -> None:
    pins = Counter(id(tables.pinned_node) for tables in owners)
    full_groups = [g for g, group in enumerate(cache.spec.groups) if group.window is None]
    for node in cache.tree.nodes():
        if node.pins != pins[id(node)]:
            raise LedgerError(
                f"a node of the prefix tree has {node.pins} pins, and {pins[id(node)]} sequences are at it"
            )
        if node.is_bare:
            raise LedgerError("the prefix tree keeps a node that nothing needs")
        parent = node.parent
        if not isinstance(node.key, str) and len(node.key) != cache.spec.block_size:
            raise LedgerError(
                f"a node of the prefix tree has {len(node.key)} tokens, and a block {cache.spec.block_size}"
            )
        if parent is None or isinstance(parent.key, str):
            continue  # nothing comes before the first block of a prefix
        for g in full_groups:
            if node.blocks[g] != NO_BLOCK and parent.blocks[g] == NO_BLOCK:
                raise LedgerError(f"group {g} of the prefix tree kept block {node.blocks[g]} but not the one before it")
