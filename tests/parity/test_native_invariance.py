"""A row's result is the same to the last bit alone, among others, and however its prompt was cut."""

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import normal, quantized


@every_path
def test_elementwise_ops_of_a_row_are_the_same_alone_and_among_others(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    x, up, weight = normal(random, 64, 600), normal(random, 64, 600), normal(random, 600)
    q, angles = normal(random, 64, 4, 150), normal(random, 64, 70)
    for row in (slice(0, 1), slice(63, 64), slice(5, 30)):
        assert torch.equal(ops.rms_norm(x[row], weight, 1e-6), ops.rms_norm(x, weight, 1e-6)[row])
        assert torch.equal(ops.gated(x[row], up[row], "silu"), ops.gated(x, up, "silu")[row])
        part, _ = ops.rotary(q[row], q[row], angles[row].cos(), angles[row].sin())
        assert torch.equal(part, ops.rotary(q, q, angles.cos(), angles.sin())[0][row])


BLOCK_SIZE = 16


def attention_batch(rows: list[tuple[int, int]], table: Tensor) -> AttentionBatch:
    """rows of (queries, context)."""
    starts = torch.tensor([0, *(queries for queries, _ in rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    contexts = torch.tensor([context for _, context in rows], dtype=torch.int32)
    return AttentionBatch(starts, contexts, table.int(), torch.empty(0, dtype=torch.int64))


@every_path
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (40, None), (5, 20.0)])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_attention_is_the_same_however_the_prompt_is_cut(
    chunk: int,
    window: int | None,
    softcap: float | None,
    kv_dtype: torch.dtype,
    instruction_set: str,
    random: Generator,
) -> None:
    ops, length = ops_of(instruction_set), 150
    keys, values = (normal(random, 12, BLOCK_SIZE, 2, 80, dtype=kv_dtype) for _ in range(2))
    table = torch.randperm(12, generator=random)[None, :10]
    q = normal(random, length, 6, 80)
    whole = ops.paged_attention(q, keys, values, attention_batch([(length, length)], table), 0.3, window, softcap)
    parts = []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        batch = attention_batch([(end - start, end)], table)
        parts.append(ops.paged_attention(q[start:end], keys, values, batch, 0.3, window, softcap))
    assert torch.equal(torch.cat(parts), whole)


@every_path
def test_attention_of_a_row_is_the_same_alone_and_among_others(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    rows = [(1, 1 + 9 * i % 150) if i % 3 else (1 + i, 40 + i) for i in range(32)]
    keys, values = (normal(random, 400, BLOCK_SIZE, 3, 64) for _ in range(2))
    table = torch.stack([torch.randperm(400, generator=random)[:10] for _ in rows])
    batch = attention_batch(rows, table)
    q = normal(random, int(batch.query_starts[-1]), 9, 64)
    whole = ops.paged_attention(q, keys, values, batch, 0.125, None, None)
    for row in (0, 1, 17, 31):
        part = slice(int(batch.query_starts[row]), int(batch.query_starts[row + 1]))
        alone = attention_batch([rows[row]], table[row : row + 1])
        assert torch.equal(ops.paged_attention(q[part], keys, values, alone, 0.125, None, None), whole[part])


@every_path
def test_attention_does_not_depend_on_where_the_blocks_lie_or_how_large_they_are(
    instruction_set: str, random: Generator
) -> None:
    ops = ops_of(instruction_set)
    keys, values = (normal(random, 96, 1, 64) for _ in range(2))
    q = normal(random, 20, 4, 64)
    results = []
    for block_size in (1, 8, 32, 96):
        order = torch.randperm(96 // block_size, generator=random)
        cache = torch.empty(2, 96 // block_size, block_size, 1, 64)
        for logical, block in enumerate(order.tolist()):
            part = slice(logical * block_size, (logical + 1) * block_size)
            cache[0, block], cache[1, block] = keys[part], values[part]
        batch = attention_batch([(20, 96)], order[None])
        results.append(ops.paged_attention(q, cache[0], cache[1], batch, 0.125, None, None))
    assert all(torch.equal(result, results[0]) for result in results)


@every_path
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_attention_is_the_same_on_any_number_of_threads(
    kv_dtype: torch.dtype, instruction_set: str, random: Generator
) -> None:
    """A few long rows are cut between threads; one thread cuts nothing."""
    rows = [(1, 700), (5, 390), (1, 1), (1, 129), (40, 600)]
    keys, values = (normal(random, 250, BLOCK_SIZE, 2, 64, dtype=kv_dtype) for _ in range(2))
    table = torch.stack([torch.randperm(250, generator=random)[:44] for _ in rows])
    batch = attention_batch(rows, table)
    q = normal(random, int(batch.query_starts[-1]), 8, 64)
    for window in (None, 300):
        alone, *others = (
            ops_of(instruction_set, threads).paged_attention(q, keys, values, batch, 0.125, window, None)
            for threads in (1, 2, 3, 8)
        )
        assert all(torch.equal(other, alone) for other in others)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_attention_is_the_same_on_every_path_that_fuses_multiply_and_add(
    kv_dtype: torch.dtype, random: Generator
) -> None:
    paths = [name for name in INSTRUCTION_SETS if name != "baseline"]
    rows = [(1, 300), (150, 290), (7, 130), (1, 17)]
    for heads, dim, softcap in [(6, 64, None), (2, 80, 30.0), (16, 128, None)]:
        keys, values = (normal(random, 100, BLOCK_SIZE, 2, dim, dtype=kv_dtype) for _ in range(2))
        table = torch.stack([torch.randperm(100, generator=random)[:19] for _ in rows])
        batch = attention_batch(rows, table)
        q = normal(random, int(batch.query_starts[-1]), heads, dim)
        results = [ops_of(name).paged_attention(q, keys, values, batch, dim**-0.5, None, softcap) for name in paths]
        assert all(torch.equal(result, results[0]) for result in results)


def test_paths_differ_by_rounding_only(random: Generator) -> None:
    x, weight = normal(random, 9, 576), quantized(random, "Q4_1", 64, 576)
    results = [ops_of(name).linear(x, ops_of(name).prepare(weight), None) for name in INSTRUCTION_SETS]
    for result in results:
        assert torch.allclose(result, results[0], rtol=0, atol=1e-5 * float(results[0].abs().max()))
