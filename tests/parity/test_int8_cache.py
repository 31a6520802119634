"""Keys and values of 8 bits: what is written is near what was given, and attention is that over what was written."""

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path
from test_native_invariance import attention_batch
from torch import Generator, Tensor

from trivium.kernels import paged_attention
from trivium.kernels.cases import error, normal
from trivium.kernels.kv_layout import LaneLayout
from trivium.kernels.select import native_ops

NUM_HEADS, BLOCK_SIZE = 2, 16


def empty_caches(num_blocks: int, dim: int) -> tuple[Tensor, Tensor]:
    pool = torch.full((2, num_blocks, NUM_HEADS * BLOCK_SIZE * (dim + 4)), 0x7F, dtype=torch.int8)  # scales are NaN
    sizes = (NUM_HEADS, BLOCK_SIZE, dim)
    return LaneLayout().keys(pool[0], *sizes), LaneLayout().values(pool[1], *sizes)


def expanded(cache: Tensor, of_keys: bool) -> Tensor:
    """-> float32 [num_blocks, block_size, num_heads, head_dim]."""
    num_blocks, num_heads, block_size, head_bytes = cache.shape
    dim, by_head = head_bytes - 4, cache.reshape(num_blocks, num_heads, -1)
    scales = by_head[..., : 4 * block_size].contiguous().view(torch.float32)
    words = by_head[..., 4 * block_size :].float()
    if of_keys:
        values = words.view(num_blocks, num_heads, dim // 2, block_size, 2).permute(0, 3, 1, 2, 4)
    else:
        values = words.view(num_blocks, num_heads, block_size // 2, dim, 2).permute(0, 2, 4, 1, 3)
    return values.reshape(num_blocks, block_size, num_heads, dim) * scales.transpose(1, 2)[..., None]


@every_path
@pytest.mark.parametrize("dim", [64, 80, 10, 128])
def test_a_written_element_is_within_half_a_step_of_its_heads_scale(
    dim: int, instruction_set: str, random: Generator
) -> None:
    ops, tokens = native_ops(instruction_set, 2), 40
    keys, values = empty_caches(4, dim)
    k, v = normal(random, tokens, NUM_HEADS, dim), normal(random, tokens, NUM_HEADS, dim) * 100
    k[3], v[4] = 0.0, 1e-35
    slots = torch.randperm(64, generator=random)[:tokens]
    ops.write_kv(k, v, keys, values, slots)
    for given, cache in ((k, expanded(keys, True)), (v, expanded(values, False))):
        written = cache[slots // BLOCK_SIZE, slots % BLOCK_SIZE]
        step = given.abs().amax(-1, keepdim=True) / 127
        assert ((written - given).abs() <= 0.5001 * step + 1e-30).all()


@every_path
@pytest.mark.parametrize(("dim", "window", "softcap"), [(64, None, None), (80, 33, None), (10, None, 20.0)])
def test_attention_is_near_that_over_the_written_values(
    dim: int, window: int | None, softcap: float | None, instruction_set: str, random: Generator
) -> None:
    ops = native_ops(instruction_set, 2)
    keys, values = empty_caches(40, dim)
    table = torch.randperm(40, generator=random)[:14].view(1, -1)
    slots = (table[0][:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()[:211]
    sizes = normal(random, 211, 1, 1).exp()  # of each token: scales must meet their own
    k, v = normal(random, 211, NUM_HEADS, dim), normal(random, 211, NUM_HEADS, dim) * sizes
    ops.write_kv(k, v, keys, values, slots)
    batch = attention_batch([(150, 211)], table)
    q = normal(random, 150, 6, dim)
    got = ops.paged_attention(q, keys, values, batch, dim**-0.5, window, softcap)
    plain = expanded(keys, True), expanded(values, False)
    want = paged_attention.reference(q, *plain, batch, dim**-0.5, window, softcap)
    assert error(got, want) < 1e-2


def test_attention_is_the_same_chunked_or_whole_on_every_path_and_any_threads(random: Generator) -> None:
    table = torch.randperm(40, generator=random)[:19].view(1, -1)
    slots = (table[0][:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()[:300]
    k, v, q = normal(random, 300, NUM_HEADS, 64), normal(random, 300, NUM_HEADS, 64), normal(random, 300, 6, 64)
    results = []
    for instruction_set in INSTRUCTION_SETS:
        if instruction_set == "baseline":
            continue
        for threads, chunk in ((1, 300), (2, 7), (3, 64)):
            ops = native_ops(instruction_set, threads)
            keys, values = empty_caches(40, 64)
            parts = []
            for start in range(0, 300, chunk):
                part = slice(start, min(300, start + chunk))
                ops.write_kv(k[part], v[part], keys, values, slots[part])
                batch = attention_batch([(part.stop - part.start, part.stop)], table)
                parts.append(ops.paged_attention(q[part], keys, values, batch, 0.125, None, None))
            results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


@every_path
def test_a_key_that_is_not_a_number_is_told(instruction_set: str, random: Generator) -> None:
    ops = native_ops(instruction_set, 1)
    keys, values = empty_caches(1, 64)
    k = normal(random, 3, NUM_HEADS, 64)
    k[1, 0, 5] = float("nan")
    ops.write_kv(k, k, keys, values, torch.arange(3))
    batch = attention_batch([(1, 3)], torch.tensor([[0]]))
    assert ops.paged_attention(normal(random, 1, 2, 64), keys, values, batch, 0.125, None, None)[0, 0].isnan().all()
