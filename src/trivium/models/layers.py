"""The parts of a decoder layer: each holds its weights and is given everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.ops import Ops
from trivium.kernels.weights import LinearWeight, PackedTensor, Weight
from trivium.models.kv_cache import LayerKV
from trivium.models.rope import Rotation
from trivium.models.spec import Activation, ModelSpec


@dataclass(frozen=True)
class Weights:
    """The weights whose names begin with `prefix`, by the rest of their names."""

    by_name: Mapping[str, LinearWeight]
    prefix: str = ""

    def under(self, prefix: str) -> Weights:
        return Weights(self.by_name, f"{self.prefix}{prefix}.")

    def matrix(self, name: str) -> LinearWeight:
        return self.by_name[self.prefix + name]

    def stored(self, name: str) -> Weight:
        """Of a weight that is no plain matrix of a linear layer: read by rows, or a stack of experts."""
        weight = self.by_name[self.prefix + name]
        assert not isinstance(weight, PackedTensor)
        return weight

    def vector(self, name: str) -> Tensor:
        vector = self.by_name[self.prefix + name]
        assert isinstance(vector, Tensor)
        return vector

    def has(self, name: str) -> bool:
        return self.prefix + name in self.by_name


@dataclass(frozen=True)
class Linear:
    weight: LinearWeight  # [out, in]
    bias: Tensor | None  # [out]

    @classmethod
    def of(cls, weights: Weights) -> Linear:
        return cls(weights.matrix("weight"), weights.vector("bias") if weights.has("bias") else None)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class RMSNorm:
    weight: Tensor  # float32
    eps: float

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True)
class Attention:
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None

    @classmethod
    def of(cls, spec: ModelSpec, layer: int, weights: Weights) -> Attention:
        def head_norm(name: str) -> RMSNorm | None:
            return RMSNorm(weights.vector(name), spec.norm.eps) if spec.attention.qk_norm else None

        return cls(
            q=Linear.of(weights.under("q")),
            k=Linear.of(weights.under("k")),
            v=Linear.of(weights.under("v")),
            o=Linear.of(weights.under("o")),
            q_norm=head_norm("q_norm.weight"),
            k_norm=head_norm("k_norm.weight"),
            head_dim=spec.head_dim,
            scale=spec.attention.scale,
            softcap=spec.attention.softcap,
            window=spec.windows[layer],
        )

    def forward(self, x: Tensor, rotation: Rotation, batch: AttentionBatch, kv: LayerKV, ops: Ops) -> Tensor:
        """x [T, H] -> [T, H]; the keys and values of x join the cache first, then each token sees them and its past."""
        q = self.q.forward(x, ops).view(len(x), -1, self.head_dim)
        k = self.k.forward(x, ops).view(len(x), -1, self.head_dim)
        v = self.v.forward(x, ops).view(len(x), -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.forward(q, ops), self.k_norm.forward(k, ops)
        q, k = ops.rotary(q, k, rotation.cos, rotation.sin)
        ops.write_kv(k, v, kv.keys, kv.values, batch.slots)
        mixed = ops.paged_attention(q, kv.keys, kv.values, batch, self.scale, self.window, self.softcap)
        return self.o.forward(mixed.flatten(1), ops)


@dataclass(frozen=True)
class DenseMLP:
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation

    @classmethod
    def of(cls, spec: ModelSpec, weights: Weights) -> DenseMLP:
        gate, up, down = (Linear.of(weights.under(name)) for name in ("mlp.gate", "mlp.up", "mlp.down"))
        return cls(gate, up, down, spec.activation)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        middle = ops.gated(self.gate.forward(x, ops), self.up.forward(x, ops), self.activation)
        return self.down.forward(middle, ops)


@dataclass(frozen=True)
class SparseMLP:
    """Each token is sent to the `top_k` experts that its router finds likeliest."""

    router: LinearWeight  # [E, H]
    gate: Weight  # [E, F, H]
    up: Weight  # [E, F, H]
    down: Weight  # [E, H, F]
    top_k: int
    norm_topk_prob: bool
    activation: Activation

    @classmethod
    def of(cls, spec: ModelSpec, weights: Weights) -> SparseMLP:
        assert spec.moe is not None
        return cls(
            router=weights.matrix("router.weight"),
            gate=weights.stored("experts.gate.weight"),
            up=weights.stored("experts.up.weight"),
            down=weights.stored("experts.down.weight"),
            top_k=spec.moe.top_k,
            norm_topk_prob=spec.moe.norm_topk_prob,
            activation=spec.activation,
        )

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        probabilities = torch.softmax(ops.linear(x, self.router, None), dim=-1, dtype=torch.float32)
        shares, experts = torch.topk(probabilities, self.top_k, dim=-1)
        if self.norm_topk_prob:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return ops.experts(x, experts, shares, self.gate, self.up, self.down, self.activation)


@dataclass(frozen=True)
class Layer:
    attention_norm: RMSNorm
    attention: Attention
    attention_post_norm: RMSNorm | None
    mlp_norm: RMSNorm
    mlp: DenseMLP | SparseMLP
    mlp_post_norm: RMSNorm | None

    @classmethod
    def of(cls, spec: ModelSpec, index: int, weights: Weights) -> Layer:
        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.vector(name), spec.norm.eps)

        return cls(
            attention_norm=norm("attention_norm.weight"),
            attention=Attention.of(spec, index, weights.under("attention")),
            attention_post_norm=norm("attention_post_norm.weight") if spec.norm.sandwich else None,
            mlp_norm=norm("mlp_norm.weight"),
            mlp=SparseMLP.of(spec, weights) if spec.is_sparse(index) else DenseMLP.of(spec, weights),
            mlp_post_norm=norm("mlp_post_norm.weight") if spec.norm.sandwich else None,
        )

    def forward(self, hidden: Tensor, rotation: Rotation, batch: AttentionBatch, kv: LayerKV, ops: Ops) -> Tensor:
        attended = self.attention.forward(self.attention_norm.forward(hidden, ops), rotation, batch, kv, ops)
        if self.attention_post_norm is not None:
            attended = self.attention_post_norm.forward(attended, ops)
        hidden = hidden + attended
        fed = self.mlp.forward(self.mlp_norm.forward(hidden, ops), ops)
        if self.mlp_post_norm is not None:
            fed = self.mlp_post_norm.forward(fed, ops)
        return hidden + fed
