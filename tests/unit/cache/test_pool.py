import pytest

from trivium.cache.pool import BlockPool, LedgerError


def counts(pool: BlockPool) -> tuple[int, int, int]:
    pool.assert_conserved()
    return pool.num_free, pool.num_held, pool.num_cached


def test_a_taken_block_is_held_until_its_last_reference_goes():
    pool = BlockPool(3)
    block = pool.take()
    pool.hold(block)
    assert counts(pool) == (2, 1, 0)
    pool.release(block)
    assert counts(pool) == (2, 1, 0)
    pool.release(block)
    assert counts(pool) == (3, 0, 0)


def test_a_kept_block_is_cached_after_its_last_reference_and_can_be_held_again():
    pool = BlockPool(2)
    block = pool.take()
    pool.keep(block)
    pool.release(block)
    assert counts(pool) == (1, 0, 1)
    pool.hold(block)
    assert counts(pool) == (1, 1, 0)


def test_cached_blocks_are_evicted_in_the_order_of_their_release():
    pool = BlockPool(4)
    first, second, third = blocks = [pool.take() for _ in range(3)]
    for block in blocks:
        pool.keep(block)
    for block in (second, first, third):
        pool.release(block)
    pool.hold(second)  # used once more, so it was used last
    pool.release(second)
    assert [pool.evict() for _ in range(3)] == [first, third, second]
    assert counts(pool) == (4, 0, 0)
    assert pool.num_evicted == 3


def test_available_counts_free_and_cached_blocks_but_not_held_ones():
    pool = BlockPool(3)
    kept = pool.take()
    pool.take()
    pool.keep(kept)
    pool.release(kept)
    assert pool.num_available == 2


def test_a_block_is_shared_with_another_holder_or_with_the_tree():
    pool = BlockPool(1)
    block = pool.take()
    assert not pool.is_shared(block)
    pool.hold(block)
    assert pool.is_shared(block)
    pool.release(block)
    pool.keep(block)
    assert pool.is_shared(block)


def test_a_release_too_many_is_noticed():
    pool = BlockPool(1)
    block = pool.take()
    pool.release(block)
    with pytest.raises(LedgerError, match="released more often"):
        pool.release(block)


def test_a_lost_block_is_noticed():
    pool = BlockPool(2)
    pool._free.pop()
    with pytest.raises(LedgerError, match="1 free"):
        pool.assert_conserved()
