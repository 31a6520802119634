"""The one encoder: whole texts in, a vector of each out. What differs between families is in the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from trivium.kernels.ops import Ops
from trivium.kernels.weights import LinearWeight, distinct_bytes
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.layers import Linear, Weights


@dataclass(frozen=True)
class LayerNorm:
    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, weights: Weights, eps: float) -> LayerNorm:
        return cls(weights.vector("weight"), weights.vector("bias"), eps)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class EncoderLayer:
    spec: EncoderSpec
    qkv: Linear
    o: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    mlp_norm: LayerNorm

    @classmethod
    def of(cls, spec: EncoderSpec, weights: Weights) -> EncoderLayer:
        return cls(
            spec=spec,
            qkv=Linear.of(weights.under("qkv")),
            o=Linear.of(weights.under("o")),
            attention_norm=LayerNorm.of(weights.under("attention_norm"), spec.norm_eps),
            up=Linear.of(weights.under("up")),
            down=Linear.of(weights.under("down")),
            mlp_norm=LayerNorm.of(weights.under("mlp_norm"), spec.norm_eps),
        )

    def forward(self, hidden: Tensor, starts: Tensor, ops: Ops) -> Tensor:
        hidden = self.attention_norm.forward(self._attended(hidden, starts, ops).add_(hidden), ops)
        return self.mlp_norm.forward(self._fed_forward(hidden, ops).add_(hidden), ops)

    def _attended(self, hidden: Tensor, starts: Tensor, ops: Ops) -> Tensor:
        return self.o.forward(self._mixed(hidden, starts, ops), ops)

    def _fed_forward(self, hidden: Tensor, ops: Ops) -> Tensor:
        return self.down.forward(ops.activate(self.up.forward(hidden, ops), self.spec.activation), ops)

    def _mixed(self, hidden: Tensor, starts: Tensor, ops: Ops) -> Tensor:
        """hidden [T, H] -> what each token's heads saw [T, H]."""
        heads = self.qkv.forward(hidden, ops).view(len(hidden), 3, self.spec.num_heads, self.spec.head_dim)
        q, k, v = heads.unbind(1)
        return ops.text_attention(q, k, v, starts, self.spec.head_dim**-0.5, None).flatten(1)


class Encoder:
    """T tokens of N texts are computed at once, one text after the other; texts meet nowhere in the mathematics."""

    def __init__(
        self,
        spec: EncoderSpec,
        weights: Mapping[str, LinearWeight],
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """`weights` holds the names of `encoder_weight_shapes(spec)`."""
        named = Weights(weights)
        self.spec = spec
        self.ops = ops
        self.dtype = dtype
        self.device = torch.device(device)
        self.weight_bytes = distinct_bytes(weights.values())
        self._embeddings = [named.stored(f"{name}.weight") for name in ("embedding", "positions", "token_types")]
        self._embedding_norm = LayerNorm.of(named.under("embedding_norm"), spec.norm_eps)
        self._layers = [EncoderLayer.of(spec, named.under(f"layers.{i}")) for i in range(spec.num_layers)]
        self._head = (
            (Linear.of(named.under("head.dense")), Linear.of(named.under("head.out"))) if spec.num_labels else None
        )

    def forward(self, tokens: Tensor, positions: Tensor, token_types: Tensor, starts: Tensor, ops: Ops) -> Tensor:
        """tokens, positions (from 0 in each text), token_types int64 [T]; starts int32 [N + 1] -> hidden [T, H]."""
        indices = (tokens, positions + self.spec.first_position, token_types)
        hidden = self._embedding_norm.forward(self._embedded(indices, ops), ops)
        for layer in self._layers:
            hidden = layer.forward(hidden, starts, ops)
        return hidden

    def _embedded(self, indices: tuple[Tensor, ...], ops: Ops) -> Tensor:
        first, *others = zip(indices, self._embeddings, strict=True)
        hidden = ops.embed(*first, self.dtype)
        for ids, table in others:
            hidden += ops.embed(ids, table, self.dtype)
        return hidden

    def pooled(self, hidden: Tensor, bounds: list[int], ops: Ops) -> Tensor:
        """hidden [T, H] of texts, text n's from bounds[n] to bounds[n + 1] -> float32 [N, vector_size]."""
        texts = [hidden[begin:end] for begin, end in pairwise(bounds)]
        if self._head is not None:
            dense, out = self._head
            first = torch.stack([text[0] for text in texts])
            return out.forward(torch.tanh(dense.forward(first, ops)), ops).float()
        match self.spec.pooling:
            case "mean":
                vectors = [text.float().mean(dim=0) for text in texts]
            case "cls":
                vectors = [text[0].float() for text in texts]
            case "max":
                vectors = [text.float().amax(dim=0) for text in texts]
            case "last":
                vectors = [text[-1].float() for text in texts]
        return torch.stack(vectors)


def encoder_weight_shapes(spec: EncoderSpec) -> dict[str, tuple[int, ...]]:
    """Every weight's name and shape, in the order in which a step uses them."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (spec.vocab_size, hidden),
        "positions.weight": (spec.num_positions, hidden),
        "token_types.weight": (spec.num_token_types, hidden),
        "embedding_norm.weight": (hidden,),
        "embedding_norm.bias": (hidden,),
    }
    for layer in range(spec.num_layers):
        for name, rows, columns in (("qkv", 3 * hidden, hidden), ("o", hidden, hidden)):
            shapes |= _linear(f"layers.{layer}.{name}", rows, columns)
        shapes |= _norm(f"layers.{layer}.attention_norm", hidden)
        for name, rows, columns in (("up", wide, hidden), ("down", hidden, wide)):
            shapes |= _linear(f"layers.{layer}.{name}", rows, columns)
        shapes |= _norm(f"layers.{layer}.mlp_norm", hidden)
    if spec.num_labels:
        shapes |= _linear("head.dense", hidden, hidden) | _linear("head.out", spec.num_labels, hidden)
    return shapes


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
