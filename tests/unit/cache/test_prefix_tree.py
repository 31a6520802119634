from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import advance, computed, num_cached, spec_of

from trivium.cache.block_cache import BlockCache
from trivium.cache.ledger import audit
from trivium.cache.prefix_tree import NO_BLOCK
from trivium.cache.tables import BlockTables

TOKENS = list(range(100, 140))


def test_a_prefix_is_found_in_whole_blocks():
    cache = BlockCache(spec_of(), 16)
    computed(cache, TOKENS[:11])
    assert num_cached(cache, TOKENS) == 8
    assert num_cached(cache, [*TOKENS[:6], 0, 0, 0]) == 4
    assert num_cached(cache, [0, *TOKENS]) == 0


def test_all_tokens_are_never_matched_since_one_must_be_computed():
    cache = BlockCache(spec_of(), 16)
    computed(cache, TOKENS[:8])
    assert num_cached(cache, TOKENS[:8]) == 4
    assert num_cached(cache, TOKENS[:9]) == 8


def test_equal_hashes_are_no_hit():
    other = 2**61 - 1
    assert hash(other) == hash(0)
    cache = BlockCache(spec_of(), 16)
    computed(cache, [0, 1, 2, 3, 4])
    assert num_cached(cache, [other, 1, 2, 3, 4]) == 0
    assert num_cached(cache, [0, 1, 2, 3, 4]) == 4


def test_salts_do_not_see_each_other():
    cache = BlockCache(spec_of(), 16)
    computed(cache, TOKENS[:9], salt="a")
    assert num_cached(cache, TOKENS[:9], salt="b") == 0
    assert num_cached(cache, TOKENS[:9], salt="a") == 8


def test_of_equal_blocks_one_is_kept_and_the_other_given_back():
    cache = BlockCache(spec_of(), 16)
    one, two = BlockTables(cache), BlockTables(cache)
    for tables in (one, two):
        tables.adopt("", TOKENS[:9])
        tables.reserve(0, 9)
    assert cache.pool.num_held == 6
    for tables in (one, two):
        tables.publish(TOKENS[:9], 9)
    assert one.groups[0][:2] == two.groups[0][:2]
    assert one.groups[0][2] != two.groups[0][2]
    assert cache.pool.num_held == 4
    audit(cache, [one, two])


def test_a_sliding_group_needs_only_the_blocks_its_window_sees():
    cache = BlockCache(spec_of(None, 5), 64)
    first = computed(cache, TOKENS[:20])
    first.release()
    sliding = [node.blocks[1] for node in cache.tree.match("", TOKENS[:21])]
    evict_all_but(cache, keep=sliding[-1:], group=1)
    assert num_cached(cache, TOKENS[:21]) == 20  # a window of 5 sees 4 tokens before the next: the last block
    assert num_cached(cache, TOKENS[:20]) == 0  # a match of 16 needs the fourth block, which is gone
    second = BlockTables(cache)
    assert second.adopt("", TOKENS[:21]) == 20
    assert second.groups[1] == [NO_BLOCK] * 4 + sliding[-1:]
    assert NO_BLOCK not in second.groups[0]


def evict_all_but(cache: BlockCache, keep: list[int], group: int) -> None:
    """Takes a group's blocks out of the tree, as if they had been the least recently used."""
    victims = [node.blocks[group] for node in cache.tree.nodes() if node.blocks[group] not in (*keep, NO_BLOCK)]
    for block in reversed(victims):
        cache.pool._cached.move_to_end(block, last=False)
    for _ in victims:
        cache.tree.drop(cache.pool.evict())


def test_a_hole_in_the_window_leaves_the_longest_match_before_it():
    cache = BlockCache(spec_of(None, 5), 64)
    computed(cache, TOKENS[:20]).release()
    sliding = [node.blocks[1] for node in cache.tree.match("", TOKENS[:21])]
    evict_all_but(cache, keep=[*sliding[:2], sliding[4]], group=1)
    assert num_cached(cache, TOKENS[:20]) == 8
    assert num_cached(cache, TOKENS[:21]) == 20


def test_the_least_recently_used_prefix_is_evicted_first_and_its_end_before_its_beginning():
    cache = BlockCache(spec_of(), 6)
    old, new = TOKENS[:12], [t + 500 for t in TOKENS[:12]]
    computed(cache, old).release()
    computed(cache, new).release()
    assert cache.pool.num_free == 0
    left = []
    for _ in range(6):
        cache.tree.drop(cache.pool.evict())
        audit(cache, [])
        left.append((num_cached(cache, [*old, 0]), num_cached(cache, [*new, 0])))
    assert left == [(8, 12), (4, 12), (0, 12), (0, 8), (0, 4), (0, 0)]


def test_a_block_that_one_full_group_has_lost_is_no_hit():
    cache = BlockCache(spec_of(None, None), 16)
    computed(cache, TOKENS[:8]).release()
    cache.tree.drop(cache.pool.evict())
    assert cache.pool.num_cached == 3
    assert num_cached(cache, [*TOKENS[:8], 0]) == 4


def test_what_was_matched_again_outlives_what_was_not():
    cache = BlockCache(spec_of(), 6)
    old, new = TOKENS[:12], [t + 500 for t in TOKENS[:12]]
    computed(cache, old).release()
    computed(cache, new).release()
    again = BlockTables(cache)
    again.adopt("", [*old, 0])
    again.release()
    cache.tree.drop(cache.pool.evict())
    assert (num_cached(cache, [*old, 0]), num_cached(cache, [*new, 0])) == (12, 8)


def test_a_tree_without_blocks_has_no_nodes():
    for windows in [(None,), (5,), (None, 3), (2, 9)]:
        cache = BlockCache(spec_of(*windows), 64)
        for salt in ("a", "b"):
            for start in (0, 3):
                computed(cache, TOKENS[start:], salt).release()
        assert cache.tree.num_nodes > 0
        while cache.pool.num_cached:
            cache.tree.drop(cache.pool.evict())
            audit(cache, [])
        assert cache.tree.num_nodes == 0


def test_a_sequence_keeps_its_place_in_the_tree_when_all_its_blocks_before_were_evicted():
    cache = BlockCache(spec_of(2), 3)
    tables = BlockTables(cache)
    tables.adopt("", TOKENS)
    for position in range(len(TOKENS)):
        advance(tables, TOKENS, position, position + 1)
        audit(cache, [tables])
    assert num_cached(cache, [*TOKENS, 0]) == len(TOKENS)
    tables.release()
    audit(cache, [])


def test_without_prefix_caching_nothing_is_kept():
    cache = BlockCache(spec_of(None, 5), 32, prefix_caching=False)
    computed(cache, TOKENS).release()
    assert (cache.pool.num_free, cache.tree.num_nodes) == (32, 0)


@settings(max_examples=60)
@given(
    windows=st.sampled_from([(None,), (3,), (None, 6), (1, None, 9), (4, 4)]),
    sequences=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=6),
    evictions=st.lists(st.integers(0, 100), max_size=25),
    asked=st.lists(st.integers(0, 1), min_size=1, max_size=16),
)
def test_a_match_is_the_longest_prefix_whose_visible_positions_are_all_cached(windows, sequences, evictions, asked):
    size = 2
    cache = BlockCache(spec_of(*windows, block_size=size), 256)
    for tokens in sequences:
        computed(cache, tokens).release()
    for choice in evictions:
        sliding = [node.blocks[g] for node in cache.tree.nodes() for g, w in enumerate(windows) if w is not None]
        sliding = sorted(block for block in sliding if block != NO_BLOCK)
        if sliding:
            cache.pool._cached.move_to_end(sliding[choice % len(sliding)], last=False)
            cache.tree.drop(cache.pool.evict())

    held = {}  # (group, tokens up to the end of a block) of what the tree has

    def visit(node, prefix):
        for g, block in enumerate(node.blocks):
            if block != NO_BLOCK:
                held[g, prefix] = block
        for key, child in node.children.items():
            visit(child, prefix + key)

    for root in cache.tree.nodes():
        if isinstance(root.key, str):
            visit(root, ())

    def is_valid(length):
        for g, window in enumerate(windows):
            first_visible = 0 if window is None else max(0, length - window + 1)
            for position in range(first_visible, length):
                if (g, tuple(asked[: (position // size + 1) * size])) not in held:
                    return False
        return True

    # A sliding group's window of 1 sees nothing before: then any length is valid, but only nodes can be walked.
    walkable = max((len(prefix) for _, prefix in held if tuple(asked[: len(prefix)]) == prefix), default=0)
    longest = max(k for k in range(0, len(asked), size) if k == 0 or (is_valid(k) and k <= walkable))
    assert num_cached(cache, asked) == longest


def test_beyond_the_easy_blocks_memory_never_written_is_taken_only_for_what_runs():
    cache = BlockCache(spec_of(), 64, easy_blocks=6)
    for first in range(0, 800, 100):
        computed(cache, list(range(first, first + 16))).release()
    assert (cache.pool.num_touched, cache.pool.num_cached, cache.pool.num_evicted) == (6, 6, 26)
    running = [computed(cache, list(range(first, first + 16))) for first in range(1000, 1500, 100)]
    assert (cache.pool.num_touched, cache.pool.num_cached) == (20, 0)
    audit(cache, running)


def test_the_blocks_ahead_are_those_ever_taken_and_some_that_are_easily_taken():
    cache = BlockCache(spec_of(), 64, easy_blocks=6)
    assert cache.blocks_ahead(4) == 4
    tables = computed(cache, TOKENS[:16])  # four blocks
    assert cache.blocks_ahead(1) == 5 and cache.blocks_ahead(100) == 6
    tables.release()
    assert cache.blocks_ahead(1) == 5
    computed(cache, list(range(200, 240)))  # ten, more than come easily
    assert cache.blocks_ahead(100) == cache.pool.num_touched > 6


def test_up_to_the_easy_blocks_nothing_is_evicted_while_blocks_are_free():
    cache = BlockCache(spec_of(), 64, easy_blocks=40)
    for first in range(0, 1000, 100):
        computed(cache, list(range(first, first + 16))).release()
    assert (cache.pool.num_touched, cache.pool.num_cached, cache.pool.num_evicted) == (40, 40, 0)
