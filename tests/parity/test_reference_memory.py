"""The reference takes tokens, heads and weights some at a time, to hold less: that changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trivium.kernels import activate, experts, gated, layer_norm, linear, paged_attention, rms_norm, rotary
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.dequantize import ELEMENTS_AT_ONCE, dequantize
from trivium.kernels.few_shapes import SIZES, linear_in_few_shapes
from trivium.kernels.token_slices import TOKENS_AT_ONCE

TOKENS, WIDTH = 2 * TOKENS_AT_ONCE + 77, 24

BY_TOKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: rms_norm.reference(x, torch.ones(WIDTH), 1e-5),
    "layer_norm": lambda x: layer_norm.reference(x, torch.ones(WIDTH), torch.zeros(WIDTH), 1e-5),
    "gated": lambda x: gated.reference(x, x + 1, "silu"),
    "activate": lambda x: activate.reference(x, "gelu"),
    "rotary": lambda x: rotary.reference(x[:, None], x[:, None], x[:, :8].float(), x[:, 8:16].float())[0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", BY_TOKEN)
def test_a_token_of_a_large_step_gets_what_it_gets_alone(op: str, dtype: torch.dtype, random: Generator) -> None:
    x = normal(random, TOKENS, WIDTH, dtype=dtype)
    alone = torch.cat([BY_TOKEN[op](x[token : token + 1]) for token in range(TOKENS)])
    together = BY_TOKEN[op](x)
    assert together.dtype == dtype and error(together.float(), alone.float()) < (
        1e-6 if dtype == torch.float32 else 0.01
    )


def test_an_expert_that_all_tokens_go_through_takes_them_all(random: Generator) -> None:
    x, wide = normal(random, TOKENS, WIDTH), 40
    gate, up, down = (normal(random, 2, *shape) for shape in [(wide, WIDTH), (wide, WIDTH), (WIDTH, wide)])
    ids, shares = torch.zeros(TOKENS, 1, dtype=torch.int64), torch.rand(TOKENS, 1, generator=random)
    want = F.silu(x @ gate[0].T) * (x @ up[0].T) @ down[0].T * shares
    assert error(experts.reference(x, ids, shares, gate, up, down, "silu"), want) < 1e-5


@pytest.mark.parametrize("type", ["Q4_1", "Q6_K"])
def test_a_weight_expanded_in_parts_is_the_weight(type: str, random: Generator) -> None:
    weight = quantized(random, type, 3, ELEMENTS_AT_ONCE // 256, 256)
    want = torch.stack([torch.cat([dequantize(row[i : i + 1], torch.float32) for i in range(0, 1024, 256)])
                        for row in (weight[0], weight[1], weight[2])])  # fmt: skip
    assert torch.equal(dequantize(weight, torch.float32)[:, :1024:256], want)


def test_heads_taken_some_at_a_time_see_what_they_see_all_at_once(
    random: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long contexts make the reference take them."""
    keys, values = normal(random, 20, 16, 4, 32), normal(random, 20, 16, 4, 32)
    batch = AttentionBatch(
        torch.tensor([0, 150, 151], dtype=torch.int32),
        torch.tensor([170, 90], dtype=torch.int32),
        torch.stack([torch.arange(0, 11), torch.arange(9, 20)]).int(),
        torch.empty(0, dtype=torch.int64),
    )
    q = normal(random, 151, 12, 32)
    together = paged_attention.reference(q, keys, values, batch, 0.2, None, None)
    for at_once in (1, 3 * 128 * 170 * 2):
        monkeypatch.setattr(paged_attention, "_ELEMENTS_AT_ONCE", at_once)
        assert error(paged_attention.reference(q, keys, values, batch, 0.2, None, None), together) < 1e-6


class Products(TorchDispatchMode):
    """Notes how many rows the products have that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.rows.add(len(args[0]))
        elif func is torch.ops.aten.addmm.default:
            self.rows.add(len(args[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("with_bias", [False, True])
def test_steps_of_any_size_need_products_of_few_shapes(with_bias: bool, random: Generator) -> None:
    weight = normal(random, 40, WIDTH, dtype=torch.bfloat16)
    bias = normal(random, 40, dtype=torch.bfloat16) if with_bias else None
    x = normal(random, 600, WIDTH, dtype=torch.bfloat16)
    with Products() as products:
        for count in (0, 1, 2, 3, 5, 16, 17, 64, 100, 256, 257, 600):
            got = linear_in_few_shapes(x[:count], weight, bias)
            assert got.shape == (count, 40) and error(got.float(), F.linear(x[:count], weight, bias).float()) < 0.02
    assert products.rows >= set(SIZES)
    products.rows.clear()
    with products:
        for count in range(1, 600, 7):
            linear_in_few_shapes(x[:count], weight, bias)
    assert products.rows <= set(SIZES)


def test_a_large_quantized_weight_gives_one_result_of_all_its_parts(
    random: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x, bias = quantized(random, "Q8_0", 100, 64), normal(random, 5, 64), normal(random, 100)
    whole = linear.reference(x, weight, bias)
    monkeypatch.setattr(linear, "EXPANDED_ELEMENTS", 64 * 7)
    assert error(linear.reference(x, weight, bias), whole) < 1e-6
