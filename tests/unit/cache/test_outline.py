from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import computed, spec_of

from trivium.cache.block_cache import BlockCache
from trivium.cache.outline import Chain, outline

EVERYTHING = (10_000, 10_000)


def test_prefixes_that_begin_alike_are_one_chain_up_to_their_branch():
    cache = BlockCache(spec_of(), 64)  # 4 tokens in a block
    beginning = list(range(8))
    one = computed(cache, [*beginning, 20, 21, 22, 23, 24])
    computed(cache, [*beginning, 30, 31, 32, 33, 34, 35, 36, 37]).release()
    seen = outline(cache, *EVERYTHING)
    assert seen.is_whole
    assert seen.chains == (
        Chain(parent=-1, blocks=2, held=2, ends=0),
        Chain(parent=0, blocks=1, held=1, ends=1),  # what is in use first
        Chain(parent=0, blocks=2, held=0, ends=0),
    )
    one.release()
    assert all(chain.held == chain.ends == 0 for chain in outline(cache, *EVERYTHING).chains)


def test_what_runs_is_seen_however_large_the_tree_is():
    cache = BlockCache(spec_of(), 64)
    running = computed(cache, [1] * 13)
    for first in range(2, 30):
        computed(cache, [first] * 5).release()
    seen = outline(cache, 3, 10_000)
    assert len(seen.chains) == 3 and not seen.is_whole
    assert sum(chain.ends for chain in seen.chains) == 1
    running.release()


def test_an_empty_tree_has_an_empty_outline():
    seen = outline(BlockCache(spec_of(), 4), *EVERYTHING)
    assert seen.chains == () and seen.is_whole


def test_tenants_have_no_chain_in_common():
    cache = BlockCache(spec_of(), 64)
    for salt in ("a", "b"):
        computed(cache, list(range(9)), salt=salt)
    assert [chain.parent for chain in outline(cache, *EVERYTHING).chains] == [-1, -1]


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), max_size=12),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_whatever_the_tree_the_outline_keeps_its_bounds_and_says_whether_it_is_whole(prompts, max_chains, max_blocks):
    cache = BlockCache(spec_of(block_size=2), 512)
    for prompt in prompts:
        computed(cache, prompt)
    num_blocks = sum(node.has_blocks for node in cache.tree.nodes())
    seen = outline(cache, max_chains, max_blocks)
    shown = sum(chain.blocks for chain in seen.chains)
    assert len(seen.chains) <= max_chains and shown <= min(max_blocks, num_blocks)
    assert seen.is_whole == (shown == num_blocks)
    assert all(chain.parent < place for place, chain in enumerate(seen.chains))
    assert all(0 <= chain.held <= chain.blocks for chain in seen.chains)
