"""A small engine for tests: rows advance through a decoder in chunks of any size, over scattered KV blocks.

Blocks are handed out in a shuffled order, blocks that a sliding group can no longer see are given back at once and
reused by whoever asks next, so that a kernel or a layer that looks where it must not gives wrong tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.types.kv import KVGroup, KVSpec


@dataclass
class Row:
    tokens: list[int]
    num_prompt_tokens: int
    tables: list[list[int]]  # per group
    computed: int = 0
    logits: list[Tensor] = field(default_factory=list)  # [V] of each position


@dataclass(frozen=True)
class Generated:
    tokens: list[int]  # without the prompt
    logits: Tensor  # [prompt + new - 1, V]


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    num_new: int,
    block_size: int = 4,
    chunks: Sequence[int] = (3, 1, 8, 64),
    kv_dtype: str | None = None,
) -> list[Generated]:
    """Greedy continuations of all prompts in one batch; row r's steps compute chunks[r], chunks[r + 1], … tokens.

    Without a `kv_dtype` keys and values are kept in that of the activations.
    """
    spec = decoder.spec.kv_spec(block_size, kv_dtype or str(decoder.dtype).removeprefix("torch."))
    num_blocks = sum(-(-(len(prompt) + num_new) // block_size) for prompt in prompts) * len(spec.groups)
    kv = KVCache(spec, num_blocks, decoder.ops.kv_layout, decoder.device)
    free = list(range(num_blocks))
    random.Random(0).shuffle(free)
    rows = [Row(list(prompt), len(prompt), [[] for _ in spec.groups]) for prompt in prompts]
    sizes = [cycle(chunks[r % len(chunks) :] + chunks[: r % len(chunks)]) for r in range(len(rows))]
    while unfinished := [r for r, row in enumerate(rows) if len(row.tokens) < row.num_prompt_tokens + num_new]:
        work = [(rows[r], min(next(sizes[r]), len(rows[r].tokens) - rows[r].computed)) for r in unfinished]
        _step(decoder, kv, spec, free, work)
    return [Generated(row.tokens[row.num_prompt_tokens :], torch.stack(row.logits)) for row in rows]


def _step(decoder: Decoder, kv: KVCache, spec: KVSpec, free: list[int], work: list[tuple[Row, int]]) -> None:
    positions = [row.computed + i for row, count in work for i in range(count)]
    tokens = [row.tokens[row.computed + i] for row, count in work for i in range(count)]
    lengths = [max(row.num_prompt_tokens, row.computed + i + 1) for row, count in work for i in range(count)]
    batches = [_attention_batch(g, group, spec, free, work) for g, group in enumerate(spec.groups)]
    hidden = decoder.forward(torch.tensor(tokens), torch.tensor(positions), torch.tensor(lengths), batches, kv)
    logits = decoder.logits(hidden)
    for (row, count), part in zip(work, logits.split([count for _, count in work]), strict=True):
        row.computed += count
        row.logits.extend(part)
        if row.computed == len(row.tokens):
            row.tokens.append(int(part[-1].argmax()))


def _attention_batch(
    g: int, group: KVGroup, spec: KVSpec, free: list[int], work: list[tuple[Row, int]]
) -> AttentionBatch:
    size = spec.block_size
    for row, count in work:
        table = row.tables[g]
        if group.window is not None:
            for logical in range(max(0, row.computed - group.window + 1) // size):
                if table[logical] >= 0:
                    free.insert(0, table[logical])
                    table[logical] = -1
        while len(table) * size < row.computed + count:
            table.append(free.pop(0))
    width = max(len(row.tables[g]) for row, _ in work)
    starts = [0]
    for _, count in work:
        starts.append(starts[-1] + count)
    slots = [
        row.tables[g][position // size] * size + position % size
        for row, count in work
        for position in range(row.computed, row.computed + count)
    ]
    return AttentionBatch(
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([row.computed + count for row, count in work], dtype=torch.int32),
        block_table=torch.tensor(
            [row.tables[g] + [-1] * (width - len(row.tables[g])) for row, _ in work], dtype=torch.int32
        ),
        slots=torch.tensor(slots),
    )
