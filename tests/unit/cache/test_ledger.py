"""The audit is only worth its name if it goes red: each test falsifies one book and sees it noticed."""

import pytest
from sequences import computed, spec_of

from trivium.cache.block_cache import BlockCache
from trivium.cache.ledger import audit
from trivium.cache.pool import LedgerError
from trivium.cache.prefix_tree import NO_BLOCK
from trivium.cache.tables import BlockTables

TOKENS = list(range(100, 140))


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache(spec_of(), 16)


@pytest.fixture
def tables(cache: BlockCache) -> BlockTables:
    """Two full blocks and a part of a third; another sequence has ended and left two cached."""
    computed(cache, [0, *TOKENS[:8]]).release()
    tables = computed(cache, TOKENS[:10])
    audit(cache, [tables])
    return tables


def test_a_table_that_nobody_accounts_for_is_noticed(cache, tables):
    with pytest.raises(LedgerError, match="0 tables hold it"):
        audit(cache, [])


def test_a_block_in_two_tables_held_once_is_noticed(cache, tables):
    other = computed(cache, TOKENS[20:30])
    other.groups[0][0] = tables.groups[0][0]
    with pytest.raises(LedgerError, match="2 tables hold it"):
        audit(cache, [tables, other])


def test_a_held_block_on_the_free_list_is_noticed(cache, tables):
    cache.pool._free[0] = tables.groups[0][2]
    with pytest.raises(LedgerError, match="is free"):
        audit(cache, [tables])


def test_a_block_freed_twice_is_noticed(cache, tables):
    cache.pool._free[0] = cache.pool._free[1]
    with pytest.raises(LedgerError, match="is free"):
        audit(cache, [tables])


@pytest.mark.parametrize(
    ("book", "noticed"),
    [("_references", "is counted as held 1 times"), ("_kept", "is in 0 nodes"), ("_cached", "can be evicted 1 times")],
)
def test_a_block_that_was_never_taken_and_is_in_a_book_is_noticed(cache, tables, book, noticed):
    last = cache.pool.num_blocks - 1
    assert last > cache.pool.num_touched
    getattr(cache.pool, book)[last] = 1
    if book == "_cached":
        cache.pool._free.remove(last)  # the totals are right
    with pytest.raises(LedgerError, match=f"block {last} {noticed}"):
        audit(cache, [tables])


def test_a_table_with_a_block_that_was_never_taken_is_noticed(cache, tables):
    last = cache.pool.num_blocks - 1
    tables.groups[0].append(last)
    with pytest.raises(LedgerError, match=f"block {last} is counted as held 0 times, and 1 tables hold it"):
        audit(cache, [tables])


def test_a_cached_block_that_the_tree_forgot_is_noticed(cache, tables):
    node, group = cache.tree._places[cache.pool.cached_blocks()[0]]
    node.blocks[group] = NO_BLOCK
    with pytest.raises(LedgerError, match="is in 0 nodes"):
        audit(cache, [tables])


def test_a_held_block_that_could_be_evicted_is_noticed(cache, tables):
    cached = cache.pool.cached_blocks()[0]
    del cache.pool._cached[cached]
    cache.pool._cached[tables.groups[0][0]] = None
    with pytest.raises(LedgerError, match="can be evicted"):
        audit(cache, [tables])


def test_a_prefix_with_a_hole_is_noticed(cache, tables):
    """As an eviction out of order would leave it."""
    first_of_ended = cache.pool.cached_blocks()[-1]
    cache.pool._cached.move_to_end(first_of_ended, last=False)
    cache.tree.drop(cache.pool.evict())
    with pytest.raises(LedgerError, match="not the one before it"):
        audit(cache, [tables])


def test_a_node_that_nothing_needs_is_noticed(cache, tables):
    cache.tree.root("nobody's")
    with pytest.raises(LedgerError, match="nothing needs"):
        audit(cache, [tables])


def test_a_pin_left_behind_is_noticed(cache, tables):
    cache.tree.pin(next(iter(cache.tree.nodes())))
    with pytest.raises(LedgerError, match="pins"):
        audit(cache, [tables])
