"""Causal attention of a step's queries over keys and values that lie in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

# Of scores, and of keys, for whose sake heads are taken some at a time. More heads would not be faster.
_ELEMENTS_AT_ONCE = 1 << 20


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
            places = _places(batch.block_table[row], key_cache.shape[1], first_key, position + count)
            hidden = _hidden_keys(position - first_key, count, position + count - first_key, window, q.device)
            for heads, kv_heads in _heads_together(q.shape, key_cache.shape, count, position + count - first_key):
                queries = q[start : start + count, heads]
                keys, values = key_cache[:, :, kv_heads], value_cache[:, :, kv_heads]
                out[start : start + count, heads] = _attend(queries, keys, values, places, hidden, scale, softcap)
            start, position = start + count, position + count
    return out


def attention_bytes(num_heads: int, num_kv_heads: int, head_dim: int, longest: int, window: int | None) -> int:
    """That `reference` holds at most beside its arguments and its result, of a row with up to `longest` keys."""
    num_keys = longest if window is None else min(longest, window + _QUERY_TILE - 1)
    num_queries = min(_QUERY_TILE, longest)
    queries_of_head = num_heads // num_kv_heads * num_queries
    heads = min(num_kv_heads, _kv_heads_at_once(queries_of_head, head_dim, num_keys))
    scores, keys = heads * queries_of_head * num_keys, heads * head_dim * num_keys
    found = 2 * 8 * num_keys + 2 * num_queries * num_keys  # places of keys, and which are hidden
    return found + 4 * (scores + max(scores, keys))


def _heads_together(
    queries: Sequence[int], cache: Sequence[int], num_queries: int, num_keys: int
) -> Iterator[tuple[slice, slice]]:
    """(query heads, the key heads that they share) of shapes [T, Hq, D] and [blocks, block_size, Hkv, D], some at a time."""
    num_kv_heads, group = cache[2], queries[1] // cache[2]
    step = _kv_heads_at_once(group * num_queries, queries[2], num_keys)
    for first in range(0, num_kv_heads, step):
        yield slice(first * group, (first + step) * group), slice(first, first + step)


def _kv_heads_at_once(queries_of_head: int, head_dim: int, num_keys: int) -> int:
    return max(1, _ELEMENTS_AT_ONCE // (max(queries_of_head, head_dim) * max(1, num_keys)))


def _places(table: Tensor, block_size: int, first: int, last: int) -> tuple[Tensor, Tensor]:
    """(block, offset in it), each int64 [last - first], of positions first … last - 1 of a row."""
    blocks = table[first // block_size : -(-last // block_size)]
    if (first // block_size + len(blocks)) * block_size < last or bool((blocks < 0).any()):
        raise ValueError(f"the block table does not hold positions {first} to {last - 1}, which the queries see")
    positions = torch.arange(first, last, device=table.device)
    return table.long()[positions // block_size], positions % block_size


def _hidden_keys(position: int, num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """bool [num_queries, num_keys]: keys that a query may not see. `position`: of the first query, from the first key on."""
    queries = torch.arange(position, position + num_queries, device=device)[:, None]
    keys = torch.arange(num_keys, device=device)
    hidden = keys > queries
    return hidden if window is None else hidden.logical_or_(keys <= queries - window)


def _attend(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    places: tuple[Tensor, Tensor],
    hidden: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """queries [N, Hq, D]; keys and values at K `places` of caches with Hkv heads; hidden [N, K] -> [N, Hq, D]."""
    num_queries, num_heads, dim = queries.shape
    num_kv_heads = key_cache.shape[2]
    grouped = queries.float().reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, dim)
    scores = torch.einsum("nhgd,khd->hgnk", grouped, key_cache[places].float()).mul_(scale)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    weights = torch.softmax(scores.masked_fill_(hidden, float("-inf")), dim=-1)
    del scores  # before the values are there
    mixed = torch.einsum("hgnk,khd->hgnd", weights, value_cache[places].float())
    return mixed.permute(2, 0, 1, 3).reshape(queries.shape).to(queries.dtype)


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
