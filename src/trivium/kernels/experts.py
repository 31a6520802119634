"""A mixture of gated feed-forward layers: each token goes through its k experts, and their results are weighed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels import gated, linear
from trivium.kernels.cases import Case, normal, quantized
from trivium.kernels.gated import Activation
from trivium.kernels.token_slices import token_slices
from trivium.kernels.weights import LinearWeight, Weight, stored

TOLERANCE = 2e-5

Product = Callable[[Tensor, LinearWeight, Tensor | None], Tensor]


def reference(
    x: Tensor,
    ids: Tensor,
    shares: Tensor,
    gate: LinearWeight,
    up: LinearWeight,
    down: LinearWeight,
    activation: Activation,
    product: Product = linear.reference,
) -> Tensor:
    """x [T, H], ids int64 [T, k], shares float32 [T, k], gate and up [E, F, H], down [E, H, F] -> [T, H].

    A token's results are summed in the order of expert ids, so that its sum does not depend on the other tokens.
    """
    gate, up, down = stored(gate), stored(up), stored(down)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in torch.unique(ids).tolist():
        layers = (gate[expert], up[expert], down[expert])
        chosen, choices = torch.where(ids == expert)
        for some in token_slices(chosen):
            tokens = chosen[some]
            result = _through(x[tokens], *layers, activation, product)
            out.index_add_(0, tokens, result.float() * shares[tokens, choices[some], None])
    return out.to(x.dtype)


def _through(x: Tensor, gate: Weight, up: Weight, down: Weight, activation: Activation, product: Product) -> Tensor:
    """x [n, H] through one expert -> [n, H]."""
    middle = gated.reference(product(x, gate, None), product(x, up, None), activation)
    return product(middle, down, None)


def cases(random: Generator) -> Iterator[Case]:
    gate: Weight
    up: Weight
    down: Weight
    for tokens, k, num_experts, wide, hidden in [(1, 2, 8, 33, 20), (7, 2, 4, 64, 96), (33, 8, 16, 64, 64)]:
        x, ids, weights = _routed(random, tokens, k, num_experts, hidden)
        for dtype in (torch.float32, torch.bfloat16):
            gate = normal(random, num_experts, wide, hidden, dtype=dtype)
            up = normal(random, num_experts, wide, hidden, dtype=dtype)
            down = normal(random, num_experts, hidden, wide, dtype=dtype)
            yield Case(f"{dtype} {tokens} tokens, {k} of {num_experts}", (x, ids, weights, gate, up, down, "silu"))
    for type, down_type in [("Q4_1", "Q8_0"), ("Q4_K", "Q6_K"), ("Q2_K", "Q3_K")]:
        x, ids, weights = _routed(random, 5, 2, 6, 256)
        gate = quantized(random, type, 6, 512, 256)
        up = quantized(random, type, 6, 512, 256)
        down = quantized(random, down_type, 6, 256, 512)
        yield Case(f"{type} and {down_type}", (x, ids, weights, gate, up, down, "gelu_tanh"))


def _routed(random: Generator, tokens: int, k: int, num_experts: int, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.rand((tokens, num_experts), generator=random)
    weights, ids = scores.topk(k, dim=-1)
    return normal(random, tokens, hidden), ids, weights.softmax(dim=-1)
