"""Causal attention of a step's queries over keys and values that lie in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import Case, normal

TOLERANCE = 1e-5
# A provider may round queries and softmax weights to the dtype of the cache, as the instructions for such products want.
TOLERANCES = {torch.float32: TOLERANCE, torch.bfloat16: 1e-2}

# Queries of one row are taken this many at a time, cut at absolute positions: memory stays bounded by
# _QUERY_TILE * context, and a long prompt gives nearly the same sums however it was chunked.
_QUERY_TILE = 128


def reference(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """q [T, Hq, D]; caches [num_blocks, block_size, Hkv, D] -> [T, Hq, D]. Computed in float32.

    The query at position i sees key j iff j <= i, and i - window < j where there is a window.
    """
    out = torch.empty_like(q)
    starts = batch.query_starts.tolist()
    for row, context in enumerate(batch.context_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        position = context - (end - start)
        while start < end:
            count = min(end - start, _QUERY_TILE - position % _QUERY_TILE)
            first_key = 0 if window is None else max(0, position - window + 1)
            keys, values = (
                _gather(cache, batch.block_table[row], first_key, position + count)
                for cache in (key_cache, value_cache)
            )
            queries = q[start : start + count]
            out[start : start + count] = _attend(queries, keys, values, position - first_key, scale, window, softcap)
            start, position = start + count, position + count
    return out


def _gather(cache: Tensor, table: Tensor, first: int, last: int) -> Tensor:
    """Positions first … last - 1 of a row -> float32 [last - first, Hkv, D]; other blocks are not touched."""
    block_size = cache.shape[1]
    first_block = first // block_size
    blocks = table[first_block : -(-last // block_size)]
    if len(blocks) * block_size + first_block * block_size < last or bool((blocks < 0).any()):
        raise ValueError(f"the block table does not hold positions {first} to {last - 1}, which the queries see")
    offset = first_block * block_size
    return cache[blocks.long()].flatten(0, 1)[first - offset : last - offset].float()


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    position: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """queries [N, Hq, D] from `position` on, counted from the first of keys and values [K, Hkv, D] -> [N, Hq, D]."""
    num_queries, num_heads, dim = queries.shape
    num_keys, num_kv_heads, _ = keys.shape
    grouped = queries.float().view(num_queries, num_kv_heads, num_heads // num_kv_heads, dim)
    scores = torch.einsum("nhgd,khd->hgnk", grouped, keys).mul_(scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = (
        torch.arange(position, position + num_queries, device=queries.device)[:, None]
        - torch.arange(num_keys, device=queries.device)[None, :]
    )
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    weights = torch.softmax(scores.masked_fill_(~visible, float("-inf")), dim=-1)
    del scores
    return torch.einsum("hgnk,khd->nhgd", weights, values).reshape(queries.shape).to(queries.dtype)


def cases(random: Generator) -> Iterator[Case]:
    decode_and_prefill = [(1, 1), (1, 40), (5, 5), (3, 33), (17, 49), (1, 16), (1, 17), (32, 32), (0, 9)]
    for num_q, num_kv, dim in [(9, 3, 64), (8, 1, 80), (4, 4, 96), (16, 2, 128), (2, 1, 256), (3, 1, 10)]:
        for kv_dtype in (torch.float32, torch.bfloat16):
            for window, softcap in [(None, None), (7, None), (20, 30.0)]:
                arguments = _paged(random, decode_and_prefill, num_q, num_kv, dim, 16, kv_dtype, window)
                name = f"{kv_dtype} heads {num_q}/{num_kv} of {dim}, window {window}, softcap {softcap}"
                yield Case(name, (*arguments, dim**-0.5, window, softcap), TOLERANCES[kv_dtype])
    for block_size in (1, 5, 64):
        arguments = _paged(random, [(1, 200), (70, 150)], 6, 2, 64, block_size, torch.float32, 3)
        yield Case(f"blocks of {block_size}", (*arguments, 0.2, 3, None))
    arguments = _paged(random, [(300, 700), (1, 700)], 3, 1, 64, 16, torch.float32, None)
    yield Case("long", (*arguments, 0.5, None, None))


def _paged(
    random: Generator,
    rows: list[tuple[int, int]],  # (queries, context) of each
    num_q: int,
    num_kv: int,
    dim: int,
    block_size: int,
    kv_dtype: torch.dtype,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor, AttentionBatch]:
    """Queries, caches and batch; blocks out of the window are -1, and blocks that no row holds are poisoned."""
    max_blocks = max(-(-context // block_size) for _, context in rows)
    num_blocks = len(rows) * max_blocks + 3
    cache = torch.full((num_blocks, 2, block_size, num_kv, dim), float("nan"), dtype=kv_dtype)
    free_blocks = torch.randperm(num_blocks, generator=random).tolist()
    table = torch.full((len(rows), max_blocks), -1, dtype=torch.int32)
    slots: list[int] = []
    for row, (queries, context) in enumerate(rows):
        first_key = 0 if window is None else max(0, context - queries - window + 1)
        for position in range(first_key, context):
            logical, offset = divmod(position, block_size)
            if table[row, logical] < 0:
                table[row, logical] = free_blocks.pop()
            block = int(table[row, logical])
            cache[block, :, offset] = normal(random, 2, num_kv, dim, dtype=kv_dtype)
            if position >= context - queries:
                slots.append(block * block_size + offset)
    query_starts = torch.tensor([0, *(queries for queries, _ in rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    context_lens = torch.tensor([context for _, context in rows], dtype=torch.int32)
    batch = AttentionBatch(query_starts, context_lens, table, torch.tensor(slots, dtype=torch.int64))
    return normal(random, int(query_starts[-1]), num_q, dim), cache[:, 0], cache[:, 1], batch
