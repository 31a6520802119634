"""Keys and values of 8 bits: what is written is near what was given, and attention is that of whole numbers."""

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path
from test_native_invariance import attention_batch
from torch import Generator, Tensor

from trivium.kernels.cases import error, normal
from trivium.kernels.kv_layout import LaneLayout
from trivium.kernels.select import native_ops

NUM_HEADS, BLOCK_SIZE = 2, 16


def empty_caches(num_blocks: int, dim: int) -> tuple[Tensor, Tensor]:
    pool = torch.full((2, num_blocks, NUM_HEADS * BLOCK_SIZE * (dim + 4)), 0x7F, dtype=torch.int8)  # scales are NaN
    sizes = (NUM_HEADS, BLOCK_SIZE, dim)
    return LaneLayout().keys(pool[0], *sizes), LaneLayout().values(pool[1], *sizes)


def turning(dim: int) -> Tensor:
    """The orthogonal matrix [dim, dim] that keys and queries are multiplied by: Hadamard's of 64 dimensions, with signs, and
    of powers of two for what is left."""
    parts, left = [], dim
    while left:
        size = min(64, 1 << left.bit_length() - 1)
        hadamard = torch.ones(1, 1)
        while len(hadamard) < size:
            hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
        signs = torch.tensor([-1.0 if (i >> 3 & i & 7).bit_count() % 2 else 1.0 for i in range(size)])
        parts.append(signs[:, None] * hadamard / size**0.5)
        left -= size
    return torch.block_diag(*parts)


def held(cache: Tensor, of_keys: bool) -> tuple[Tensor, Tensor]:
    """-> whole numbers float32 [num_blocks, block_size, num_heads, head_dim], scales [num_blocks, block_size, num_heads, 1]."""
    num_blocks, num_heads, block_size, head_bytes = cache.shape
    dim, by_head = head_bytes - 4, cache.reshape(num_blocks, num_heads, -1)
    scales = by_head[..., : 4 * block_size].contiguous().view(torch.float32)
    words = by_head[..., 4 * block_size :].contiguous()
    if of_keys:
        numbers = words.view(torch.uint8).float() - 128
        numbers = numbers.view(num_blocks, num_heads, dim // 4, block_size, 4).permute(0, 3, 1, 2, 4)
    else:
        numbers = words.float().view(num_blocks, num_heads, block_size // 4, dim, 4).permute(0, 2, 4, 1, 3)
    return numbers.reshape(num_blocks, block_size, num_heads, dim), scales.transpose(1, 2)[..., None]


def in_whole_numbers(x: Tensor, most: float) -> Tensor:
    """Rounded to `most` steps of the largest of the last dimension."""
    step = x.abs().amax(-1, keepdim=True) / most
    return (x / step.clamp_min(1e-30)).round() * step


def attention_by_bytes(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, window: int | None, softcap: float | None
) -> Tensor:
    """Of the last len(q) of the tokens in `slots`, one after the other, as kernels/attention.h says it of bytes, in float64."""
    (num_queries, num_heads, dim), num_keys = q.shape, len(slots)
    (k, k_scales), (v, v_scales) = (
        [
            part.flatten(0, 1)[slots].double().repeat_interleave(num_heads // NUM_HEADS, 1)
            for part in held(cache, of_keys)
        ]
        for cache, of_keys in ((keys, True), (values, False))
    )
    turned = in_whole_numbers(q.double() @ turning(dim).double(), 127)
    scores = torch.einsum("qhd,khd->hqk", turned, k * k_scales) * dim**-0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    behind = torch.arange(num_keys - num_queries, num_keys)[:, None] - torch.arange(num_keys)
    scores[:, (behind < 0) | (behind >= (window or num_keys))] = -torch.inf
    largest = scores.amax(-1, keepdim=True)
    mixed, shares = torch.zeros(num_heads, num_queries, dim).double(), torch.zeros(num_heads, num_queries, 1).double()
    for first in range(0, num_keys, 128):
        tile = slice(first, first + 128)
        weights = (scores[..., tile] - largest).exp()
        scaled = in_whole_numbers(weights * v_scales[tile].permute(1, 2, 0), 255)
        mixed += torch.einsum("hqk,khd->hqd", scaled, v[tile])
        shares += weights.sum(-1, keepdim=True)
    return (mixed / shares).transpose(0, 1).float()


@every_path
@pytest.mark.parametrize("dim", [64, 80, 12, 96, 128, 256])
def test_what_is_written_is_within_half_a_step_of_its_heads_scale(
    dim: int, instruction_set: str, random: Generator
) -> None:
    ops, tokens = native_ops(instruction_set, 2), 40
    keys, values = empty_caches(4, dim)
    k, v = normal(random, tokens, NUM_HEADS, dim), normal(random, tokens, NUM_HEADS, dim) * 100
    k[3], v[4] = 0.0, 1e-35
    slots = torch.randperm(64, generator=random)[:tokens]
    ops.write_kv(k, v, keys, values, slots)
    for given, cache, of_keys in ((k @ turning(dim), keys, True), (v, values, False)):
        numbers, scales = (part.flatten(0, 1)[slots] for part in held(cache, of_keys))
        step = given.abs().amax(-1, keepdim=True) / 127
        assert ((numbers * scales - given).abs() <= 0.501 * step + 1e-30).all()


@every_path
@pytest.mark.parametrize(
    ("dim", "window", "softcap"),
    [(64, None, None), (80, 33, None), (12, None, 20.0), (96, None, None), (128, 200, 30.0), (256, None, None)],
)
def test_attention_is_that_of_whole_numbers(
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
    want = attention_by_bytes(q, keys, values, slots, window, softcap)
    assert (got - want).abs().mean() < 1e-4 * want.abs().max()
    # A weight or two may be rounded to the other side of half a step: 2^x has an error of 1e-4.
    assert error(got, want) < 1e-2
    plain = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
    scores = torch.einsum("qhd,khd->hqk", q, plain[0]) * dim**-0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    behind = torch.arange(61, 211)[:, None] - torch.arange(211)
    scores[:, (behind < 0) | (behind >= (window or 211))] = -torch.inf
    assert error(got, torch.einsum("hqk,khd->qhd", scores.softmax(-1), plain[1])) < 4e-2


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


@every_path
@pytest.mark.parametrize("softcap", [None, 20.0])
def test_queries_and_values_of_zeros_give_the_mean_of_what_is_seen(
    softcap: float | None, instruction_set: str, random: Generator
) -> None:
    """A row of an embedding may be zeros: those of padding are."""
    ops = native_ops(instruction_set, 1)
    keys, values = empty_caches(4, 64)
    k, v = normal(random, 40, NUM_HEADS, 64), normal(random, 40, NUM_HEADS, 64)
    k[7], v[7], v[:3] = 0.0, 0.0, 0.0
    ops.write_kv(k, v, keys, values, torch.arange(40))
    batch = attention_batch([(40, 40)], torch.arange(4).view(1, -1))
    for q in (torch.zeros(40, 2, 64), torch.full((40, 2, 64), 1e-38)):
        got = ops.paged_attention(q, keys, values, batch, 0.125, None, softcap)
        assert error(got, v.cumsum(0) / torch.arange(1, 41)[:, None, None]) < 2e-2
