"""The ops on an NVIDIA GPU for a deterministic engine: a row's result is the same to the bit whatever rows are beside it and
however its tokens were cut into steps.

Products, attention and experts run on kernels whose tiles depend on the model alone, each row through the same
instructions; a token that decodes takes the way of a prompt's token. Libraries that choose by shape are not called.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trivium.kernels import embed, experts, linear, logprobs
from trivium.kernels.attention import AttentionBatch, HeadRules
from trivium.kernels.cuda import ops_by
from trivium.kernels.gated import Activation
from trivium.kernels.ops import ENCODER_OPS, OP_NAMES, ExpertLayers, Ops
from trivium.kernels.triton import choose
from trivium.kernels.triton.experts import grouped_experts
from trivium.kernels.triton.gated import gated
from trivium.kernels.triton.heads import turn_and_store
from trivium.kernels.triton.ordered_linear import ordered_linear
from trivium.kernels.triton.prefill_attention import prefill_attention
from trivium.kernels.triton.rms_norm import rms_norm
from trivium.kernels.triton.route import route, route_to_tiles
from trivium.kernels.weights import LinearLayers, LinearWeight, Weight, stored


def ordered_gpu_ops(reason: str) -> Ops:
    ops = ops_by(OrderedKernels(), reason)
    return replace(ops, logprobs=ordered_logprobs, invariant=frozenset(OP_NAMES) - frozenset(ENCODER_OPS))


class OrderedKernels:
    def __init__(self) -> None:
        self.fallbacks: Counter[str] = Counter()

    # --- single ops

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        weight = stored(weight)
        if isinstance(weight, Tensor):
            return self._product(x, weight.to(x.dtype), bias=bias)
        self.fallbacks["linear: quantized weight"] += 1
        return linear.by_parts(x, weight, bias, self._product)

    def embed(self, ids: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
        if not isinstance(weight, Tensor):
            self.fallbacks["embed: quantized weight"] += 1
            return embed.reference(ids, weight, dtype)
        return F.embedding(ids, weight).to(dtype)

    def paged_attention(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        rules = HeadRules(q.shape[-1], scale, window, softcap)
        return self._attend(q.flatten(1), keys, values, batch, rules).view(q.shape)

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        shares: Tensor,
        gate: LinearWeight,
        up: LinearWeight,
        down: LinearWeight,
        activation: Activation,
    ) -> Tensor:
        self.fallbacks["experts: weights that are not joined"] += 1
        return experts.reference(x, ids, shares, gate, up, down, activation, product=self.linear)

    # --- several in one

    def norm_linears(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers) -> tuple[Tensor, ...]:
        normed = rms_norm(x, norm, eps)
        if layers.joined is None:
            return tuple(self.linear(normed, *layer) for layer in zip(layers.weights, layers.biases, strict=True))
        y = self._product(normed, layers.joined, bias=layers.joined_bias)
        return torch.split(y, [weight.shape[0] for weight in layers.weights], dim=1)

    def linear_add(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
        if not isinstance(weight, Tensor):
            return residual + self.linear(x, weight, bias)
        return self._product(x, weight, bias=bias, residual=residual)

    def norm_gated(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers, activation: Activation) -> Tensor:
        gate, up = self.norm_linears(x, norm, eps, layers)
        return gated(gate, up, activation)

    def attend(
        self,
        projected: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: AttentionBatch,
        rules: HeadRules,
    ) -> Tensor:
        q, k, v = projected
        turn_and_store(q, k, v, cos, sin, batch.slots, keys, values, rules)
        return self._attend(q, keys, values, batch, rules)

    def norm_experts_add(self, hidden: Tensor, norm: Tensor, eps: float, layers: ExpertLayers) -> Tensor:
        x = rms_norm(hidden, norm, eps)
        if layers.gate_up is None or not isinstance(layers.down, Tensor) or not isinstance(layers.router, Tensor):
            routed = route(self.linear(x, layers.router, None), layers.top_k, layers.norm_topk_prob)
            ids = routed.experts.long()
            return hidden + self.experts(x, ids, routed.shares, layers.gate, layers.up, layers.down, layers.activation)
        up_tiles, down_tiles = choose.grouped_tiles(x.element_size())
        scores = self._product(x, layers.router, dtype=torch.float32)
        routed, expert_tiles = route_to_tiles(scores, layers.top_k, layers.norm_topk_prob, up_tiles.rows)
        return grouped_experts(
            x, routed, expert_tiles, layers.gate_up, layers.down, layers.activation, hidden, up_tiles, down_tiles
        )

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor | None) -> Tensor:
        """Of x's type, as captured steps have them."""
        if isinstance(weight, Tensor):
            return self._product(x, weight, out=out)
        logits = self.linear(x, weight, None)
        return logits if out is None else out.copy_(logits)

    # --- parts of them

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        dtype: torch.dtype | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        tiles = choose.ordered_tiles(weight.shape[0], x.element_size())
        return ordered_linear(x, weight, tiles, bias=bias, residual=residual, dtype=dtype, out=out)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, batch: AttentionBatch, rules: HeadRules) -> Tensor:
        return prefill_attention(
            q, keys, values, batch, rules, choose.ordered_attention_tiles(rules.head_dim, q.element_size())
        )


def ordered_logprobs(logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """As `logprobs.reference`, with a sum whose order is that of the vocabulary alone."""
    logits = logits.float()
    largest = logits.amax(dim=-1, keepdim=True).double()
    terms = (logits.double() - largest).exp()
    while (count := terms.shape[1]) > 1:  # element by element, so that no library cuts the sum by the number of rows
        half = (count + 1) // 2
        terms = terms[:, :half] + F.pad(terms[:, half:], (0, 2 * half - count))
    return logprobs.scored(logits, tokens, num_top, terms.log() + largest)
