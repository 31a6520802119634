"""The pool of key/value blocks that all layers share."""

from __future__ import annotations

import pytest
import torch

from trivium.kernels.kv_layout import KVLayout, LaneLayout, PlainLayout
from trivium.models.kv_cache import KVCache
from trivium.types.kv import KVGroup, KVSpec

PLAIN, LANES = PlainLayout(), LaneLayout()


def cache(dtype: str = "float32", layout: KVLayout = PLAIN) -> KVCache:
    groups = (KVGroup((0, 2)), KVGroup((1, 3), window=8), KVGroup((4,), window=8))
    spec = KVSpec(block_size=4, groups=groups, num_kv_heads=2, head_dim=6, dtype=dtype)
    return KVCache(spec, num_blocks=5, layout=layout, device="cpu")


@pytest.mark.parametrize(
    ("dtype", "layout", "head_bytes"),
    [
        ("float32", PLAIN, 24),
        ("float16", PLAIN, 12),
        ("float32", LANES, 24),
        ("bfloat16", LANES, 12),
        ("int8", LANES, 6 + 4),
    ],
)
def test_the_pool_is_as_large_as_the_spec_says(dtype: str, layout: KVLayout, head_bytes: int) -> None:
    kv = cache(dtype, layout)
    assert kv.spec.bytes_per_block == 2 * 2 * 4 * 2 * head_bytes  # layers, keys and values, tokens, heads
    storages = {kv.layer(i).keys.untyped_storage().data_ptr(): kv.layer(i).keys.untyped_storage() for i in range(5)}
    assert sum(storage.nbytes() for storage in storages.values()) == 5 * kv.spec.bytes_per_block


def test_layers_of_one_group_have_their_own_place_in_a_block_and_groups_share_the_pool() -> None:
    kv = cache()
    assert [kv.layer(i).group for i in range(5)] == [0, 1, 0, 1, 2]
    assert kv.layer(0).keys.shape == kv.layer(0).values.shape == (5, 4, 2, 6)
    kv.layer(0).keys[3] = 1.0
    assert not kv.layer(2).keys.any()
    assert not kv.layer(0).values.any()
    assert kv.layer(1).keys[3].all()  # the first layer of the other group: block 3 is of only one group at a time


def test_a_copied_block_holds_the_keys_and_values_of_all_layers() -> None:
    kv = cache()
    for layer in (0, 2):
        kv.layer(layer).keys[1] = 1.0 + layer
        kv.layer(layer).values[1] = 10.0 + layer
        kv.layer(layer).keys[2] = 100.0 + layer
    kv.copy_blocks([(1, 4), (2, 1)])
    for layer in (0, 2):
        assert torch.all(kv.layer(layer).keys[4] == 1.0 + layer)
        assert torch.all(kv.layer(layer).values[4] == 10.0 + layer)
        assert torch.all(kv.layer(layer).keys[1] == 100.0 + layer)
    kv.copy_blocks([])
