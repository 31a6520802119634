"""The torch references against independent formulations."""

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.kernels import embed, experts, gated, linear, paged_attention, rms_norm, rotary, write_kv
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.dequantize import dequantize


def paged_rows(keys: Tensor, block_size: int, random: Generator) -> tuple[Tensor, Tensor]:
    """keys [K, H, D] scattered over a cache -> (cache, the row's block table)."""
    num_blocks = -(-keys.shape[0] // block_size)
    table = torch.randperm(num_blocks + 2, generator=random)[:num_blocks]
    cache = torch.full((num_blocks + 2, block_size, *keys.shape[1:]), float("nan"))
    for position, key in enumerate(keys):
        cache[table[position // block_size], position % block_size] = key
    return cache, table.int()[None]


@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("num_queries", [1, 33, 150])
def test_paged_attention_is_attention(random: Generator, num_queries: int, window: int | None) -> None:
    num_keys = 150
    q, k, v = normal(random, num_queries, 6, 32), normal(random, num_keys, 2, 32), normal(random, num_keys, 2, 32)
    key_cache, table = paged_rows(k, 16, random)
    value_cache = torch.full_like(key_cache, float("nan"))
    for position, value in enumerate(v):
        value_cache[table[0, position // 16], position % 16] = value
    batch = AttentionBatch(
        torch.tensor([0, num_queries], dtype=torch.int32),
        torch.tensor([num_keys], dtype=torch.int32),
        table,
        torch.empty(0, dtype=torch.int64),
    )
    got = paged_attention.reference(q, key_cache, value_cache, batch, 0.2, window, None)

    i = torch.arange(num_keys - num_queries, num_keys)[:, None]
    j = torch.arange(num_keys)[None]
    visible = (j <= i) & (j > i - (window or num_keys))
    want = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=visible, scale=0.2, enable_gqa=True
    ).transpose(0, 1)
    assert error(got, want) < 1e-5


@pytest.mark.parametrize("slots", [[5, -1, 31, -1], [-1, 31, 0], [31, -1], [3, 4]])
def test_rows_that_only_pad_a_step_write_nothing(random: Generator, slots: list[int]) -> None:
    """Also where the last slot of all, which -1 would be by counting from the end, is somebody's."""
    before = normal(random, 2, 4, 8, 2, 16)
    k, v = normal(random, len(slots), 2, 16), normal(random, len(slots), 2, 16)
    keys, values = before.clone()
    write_kv.reference(k, v, keys, values, torch.tensor(slots))
    wanted = before.clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            wanted[:, slot // 8, slot % 8] = torch.stack([k[row], v[row]])
    assert torch.equal(torch.stack([keys, values]), wanted)


def test_softcap_bounds_the_scores_before_the_mask(random: Generator) -> None:
    q, k, v = normal(random, 4, 1, 16) * 9, normal(random, 4, 1, 16) * 9, normal(random, 4, 1, 16)
    batch = AttentionBatch(
        torch.tensor([0, 4], dtype=torch.int32),
        torch.tensor([4], dtype=torch.int32),
        torch.tensor([[0]], dtype=torch.int32),
        torch.empty(0, dtype=torch.int64),
    )
    scores = 10 * torch.tanh(q[:, 0] @ k[:, 0].T / 10)
    want = torch.softmax(scores + torch.full((4, 4), float("-inf")).triu(1), dim=-1) @ v[:, 0]
    assert error(paged_attention.reference(q, k[None], v[None], batch, 1.0, None, 10.0)[:, 0], want) < 1e-5


def test_a_block_that_a_query_sees_must_be_in_the_table(random: Generator) -> None:
    cache = normal(random, 4, 8, 1, 16)
    batch = AttentionBatch(
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([20], dtype=torch.int32),
        torch.tensor([[-1, 1, 2]], dtype=torch.int32),
        torch.empty(0, dtype=torch.int64),
    )
    paged_attention.reference(normal(random, 1, 1, 16), cache, cache, batch, 1.0, 12, None)
    with pytest.raises(ValueError, match="does not hold positions 7 to 19"):
        paged_attention.reference(normal(random, 1, 1, 16), cache, cache, batch, 1.0, 13, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_linear_of_a_quantized_weight_is_that_of_its_values(random: Generator, dtype: torch.dtype) -> None:
    x, bias = normal(random, 3, 256, dtype=dtype), normal(random, 40)
    weight = quantized(random, "Q5_K", 40, 256)
    want = x.double() @ dequantize(weight, torch.float32).double().T + bias.double()
    got = linear.reference(x, weight, bias)
    assert got.dtype == dtype
    assert error(got, want) < 8 * torch.finfo(dtype).eps


def test_a_large_quantized_weight_is_expanded_in_parts(random: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(random, 2, 64), quantized(random, "Q8_0", 37, 64)
    whole = linear.reference(x, weight, None)
    monkeypatch.setattr(linear, "EXPANDED_ELEMENTS", 64 * 5)
    assert error(linear.reference(x, weight, None), whole) < 1e-6


def test_embed_gives_rows_in_the_wanted_dtype(random: Generator) -> None:
    weight = quantized(random, "Q6_K", 9, 256)
    ids = torch.tensor([8, 0, 8])
    got = embed.reference(ids, weight, torch.bfloat16)
    assert torch.equal(got, dequantize(weight, torch.float32)[ids].bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_keeps_the_dtype_and_takes_statistics_in_float32(random: Generator, dtype: torch.dtype) -> None:
    x, weight = normal(random, 5, 64, dtype=dtype) * 100, normal(random, 64)
    want = F.rms_norm(x.double(), (64,), weight.double(), 1e-6)
    got = rms_norm.reference(x, weight, 1e-6)
    assert got.dtype == dtype
    assert error(got, want) < 2 * torch.finfo(dtype).eps


def test_rotary_turns_pairs_half_a_head_apart_as_complex_numbers(random: Generator) -> None:
    x, angles = normal(random, 4, 3, 20), normal(random, 4, 8)
    turned = torch.complex(x[..., :8], x[..., 8:16]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    want = torch.cat([turned.real, turned.imag, x[..., 16:]], dim=-1)
    q, k = rotary.reference(x, x[:, :1], angles.cos(), angles.sin())
    assert error(q, want) < 1e-6
    assert error(k, want[:, :1]) < 1e-6


def test_gated_is_the_activation_times_up(random: Generator) -> None:
    gate, up = normal(random, 3, 50), normal(random, 3, 50)
    assert error(gated.reference(gate, up, "silu"), gate * torch.sigmoid(gate) * up) < 1e-6
    assert error(gated.reference(gate, up, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up) < 1e-6


def test_experts_weigh_what_each_chosen_expert_gives(random: Generator) -> None:
    x, ids, weights = normal(random, 4, 8), torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0]]), normal(random, 4, 2)
    gate, up, down = normal(random, 3, 16, 8), normal(random, 3, 16, 8), normal(random, 3, 8, 16)
    middle = F.silu(torch.einsum("th,efh->tef", x, gate)) * torch.einsum("th,efh->tef", x, up)
    each = torch.einsum("tef,ehf->teh", middle, down)
    want = (each[torch.arange(4)[:, None], ids] * weights[..., None]).sum(1)
    assert error(experts.reference(x, ids, weights, gate, up, down, "silu"), want) < 1e-5
