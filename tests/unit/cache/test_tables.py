from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import advance, computed, num_cached, spec_of

from trivium.cache.block_cache import BlockCache
from trivium.cache.ledger import audit
from trivium.cache.prefix_tree import NO_BLOCK
from trivium.cache.tables import BlockTables

TOKENS = list(range(100, 160))


def empty(cache: BlockCache) -> BlockTables:
    tables = BlockTables(cache)
    tables.adopt("", TOKENS)
    return tables


def test_reserving_gives_every_group_blocks_up_to_the_position():
    cache = BlockCache(spec_of(None, 8), 16)
    tables = empty(cache)
    tables.reserve(0, 5)
    assert [len(table) for table in tables.groups] == [2, 2]
    assert tables.writable_end == 8
    tables.reserve(5, 8)
    assert cache.pool.num_held == 4


def test_the_furthest_position_is_where_the_available_blocks_end():
    cache = BlockCache(spec_of(None, 8), 7)
    tables = empty(cache)
    assert tables.furthest(0, 100) == 12  # three blocks for each of two groups; the seventh is of no use
    tables.reserve(0, 12)
    assert tables.furthest(10, 100) == 12
    assert tables.furthest(12, 100) == 12


def test_cached_blocks_are_evicted_when_no_block_is_free():
    cache = BlockCache(spec_of(), 4)
    computed(cache, TOKENS[:16]).release()
    assert cache.pool.num_free == 0
    other = BlockTables(cache)
    other.adopt("other", TOKENS)
    other.reserve(0, 9)
    assert (cache.pool.num_evicted, cache.pool.num_held, cache.pool.num_cached) == (3, 3, 1)
    audit(cache, [other])


def test_blocks_that_a_step_will_fill_can_be_adopted_at_once():
    cache = BlockCache(spec_of(None, 6), 32)
    first, second = empty(cache), BlockTables(cache)
    first.reserve(0, 14)
    first.offer(TOKENS, 14)
    assert second.adopt("", TOKENS[:20]) == 12
    assert second.groups[0] == first.groups[0][:3]
    audit(cache, [first, second])


def test_a_sequence_writes_its_own_block_where_the_tree_has_those_tokens():
    cache = BlockCache(spec_of(), 32)
    kept, again = computed(cache, TOKENS[:12]), empty(cache)
    again.reserve(0, 12)
    own = list(again.groups[0])
    again.offer(TOKENS, 12)
    assert again.groups[0] == own
    again.publish(TOKENS, 12)
    assert again.groups == kept.groups
    audit(cache, [kept, again])


def test_what_is_withdrawn_is_found_by_nobody_and_those_before_it_still_are():
    cache = BlockCache(spec_of(None, 6), 32)
    tables = empty(cache)
    advance(tables, TOKENS, 0, 8)
    tables.reserve(8, 20)
    tables.offer(TOKENS, 20)
    follower = BlockTables(cache)
    follower.adopt("", TOKENS[:20])
    assert set(tables.withdraw(8)) == {block for table in tables.groups for block in table[2:5]}
    assert num_cached(cache, TOKENS) == 8
    audit(cache, [tables, follower])
    follower.release()
    tables.release()
    assert cache.pool.num_held == 0
    audit(cache, [])


def test_a_sliding_group_gives_a_block_back_when_no_later_query_sees_it():
    cache = BlockCache(spec_of(6), 16, prefix_caching=False)
    tables = empty(cache)
    for position in range(24):
        advance(tables, TOKENS, position, position + 1)
        num_computed = position + 1
        visible = {p // 4 for p in range(max(0, num_computed - 5), num_computed)}
        assert {i for i, block in enumerate(tables.groups[0]) if block != NO_BLOCK} == visible
        audit(cache, [tables])


def test_a_chunk_longer_than_the_window_leaves_only_the_window():
    cache = BlockCache(spec_of(None, 6), 32)
    tables = empty(cache)
    advance(tables, TOKENS, 0, 32)
    assert [len([b for b in table if b != NO_BLOCK]) for table in tables.groups] == [8, 2]


def test_a_fork_shares_every_block_and_copies_only_the_one_it_writes():
    cache = BlockCache(spec_of(None, 100), 32)
    source = computed(cache, TOKENS[:10])
    held = cache.pool.num_held
    fork = BlockTables(cache)
    fork.fork(source, 10)
    assert cache.pool.num_held == held
    copies = fork.reserve(9, 10)
    assert [(copy.src, copy.dst) for copy in copies] == [(source.groups[g][2], fork.groups[g][2]) for g in range(2)]
    assert [table[:2] for table in fork.groups] == [table[:2] for table in source.groups]
    assert cache.pool.num_held == held + 2
    assert source.reserve(10, 11) == []  # alone again in its last block
    audit(cache, [source, fork])


def test_the_source_copies_if_it_writes_first_and_the_fork_then_need_not():
    cache = BlockCache(spec_of(), 32)
    source = computed(cache, TOKENS[:10])
    fork = BlockTables(cache)
    fork.fork(source, 10)
    assert source.writable_end == 0
    assert len(source.reserve(10, 11)) == 1
    assert fork.reserve(9, 10) == []
    audit(cache, [source, fork])


def test_a_full_last_block_is_copied_even_when_only_the_tree_shares_it():
    cache = BlockCache(spec_of(), 32)
    source = computed(cache, TOKENS[:8])
    fork = BlockTables(cache)
    fork.fork(source, 8)
    source.release()
    kept = fork.groups[0][1]
    copies = fork.reserve(7, 8)
    assert [copy.src for copy in copies] == [kept]
    fork.publish(TOKENS[:8], 8)
    assert fork.groups[0][1] == kept  # the same tokens again: it goes over to the tree's block
    audit(cache, [fork])


def test_a_copy_needs_a_block_to_be_available():
    cache = BlockCache(spec_of(), 3)
    source = computed(cache, TOKENS[:10])
    fork = BlockTables(cache)
    fork.fork(source, 10)
    assert fork.furthest(9, 10) == 9
    fork.release()
    audit(cache, [source])


def test_a_source_that_has_slid_too_far_cannot_be_forked():
    cache = BlockCache(spec_of(None, 4), 32)
    source = empty(cache)
    advance(source, TOKENS, 0, 10)
    assert source.can_fork(10)
    assert not source.can_fork(13)  # not reserved
    advance(source, TOKENS, 10, 16)
    assert not source.can_fork(10)


def test_releasing_gives_everything_back_and_the_tables_can_be_used_again():
    cache = BlockCache(spec_of(None, 6), 32)
    tables = computed(cache, TOKENS[:21])
    tables.release()
    assert cache.pool.num_held == 0
    audit(cache, [tables])
    assert tables.adopt("", TOKENS[:21]) == 20
    tables.release()
    assert cache.pool.num_held == 0


def test_what_is_still_to_be_taken_is_bounded_by_the_window():
    cache = BlockCache(spec_of(None, 5), 64)
    tables = empty(cache)
    assert tables.num_more_blocks(40) == 10 + 3  # 5 tokens may touch 2 blocks; the bound says 3
    tables.reserve(0, 4)
    assert tables.num_more_blocks(40) == 9 + 2
    assert tables.num_more_blocks(4) == 0


@settings(max_examples=80)
@given(
    windows=st.sampled_from([(None,), (3,), (None, 6), (5, None, 1)]),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    prefix=st.integers(0, 40),
    told=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_the_updates_told_are_always_enough_to_mirror_the_tables(windows, chunks, prefix, told):
    cache = BlockCache(spec_of(*windows, block_size=3), 200)
    computed(cache, [*TOKENS[:prefix], 0]).release()
    other = BlockTables(cache)  # has published all the tokens: blocks will be exchanged for its own
    other.adopt("", TOKENS[:1])
    other.reserve(0, len(TOKENS))
    other.publish(TOKENS, len(TOKENS))
    tables = BlockTables(cache)
    position = tables.adopt("", [*TOKENS[:prefix], 0]) if prefix % 2 else tables.adopt("", TOKENS[:1])
    mirror: list[list[int]] = [[] for _ in windows]
    for chunk, tell in zip(chunks, told, strict=False):
        end = min(position + chunk, len(TOKENS))
        if end == position:
            break
        tables.reserve(position, end)
        if tell or position == 0:
            for update in tables.take_updates():
                mirror[update.group][update.first : update.first + len(update.blocks)] = update.blocks
            assert mirror == tables.groups
            assert not tables.has_changes and tables.take_updates() == ()
        if end >= tables.next_full:
            tables.publish(TOKENS, end)
        if end >= tables.next_slide:
            tables.slide(end)
        position = end
    for update in tables.take_updates():
        mirror[update.group][update.first : update.first + len(update.blocks)] = update.blocks
    assert mirror == tables.groups
