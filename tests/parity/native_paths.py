"""Every instruction set that was built and that this machine runs."""

from dataclasses import replace
from functools import cache

import pytest
from lane_layout import in_lanes, plain_keys, plain_values
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.native import usable_instruction_sets
from trivium.kernels.ops import Ops
from trivium.kernels.select import native_ops
from trivium.types.errors import ConfigError

try:
    INSTRUCTION_SETS = usable_instruction_sets()
except ConfigError as error:
    pytest.skip(str(error), allow_module_level=True)

every_path = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)


@cache
def ops_of(instruction_set: str, num_threads: int = 2) -> Ops:
    """The native ops, which take plain caches [num_blocks, block_size, num_heads, head_dim] here, as the reference does."""
    native = native_ops(instruction_set, num_threads)

    def write_kv(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        keys, values = in_lanes(key_cache, value_cache)
        native.write_kv(k, v, keys, values, slots)
        key_cache.copy_(plain_keys(keys))
        value_cache.copy_(plain_values(values))

    def paged_attention(
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        return native.paged_attention(q, *in_lanes(key_cache, value_cache), batch, scale, window, softcap)

    return replace(native, write_kv=write_kv, paged_attention=paged_attention)
