"""The parts of a decoder layer: each holds its weights and is given everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from trivium.kernels.attention import AttentionBatch, HeadRules
from trivium.kernels.ops import ExpertLayers, Ops
from trivium.kernels.weights import LinearLayers, LinearWeight, PackedTensor, Weight
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
        """Of a weight that is read by rows."""
        weight = self.by_name[self.prefix + name]
        assert not isinstance(weight, PackedTensor)
        return weight

    def vector(self, name: str) -> Tensor:
        """Of a weight that is never quantized."""
        vector = self.by_name[self.prefix + name]
        assert isinstance(vector, Tensor)
        return vector

    def has(self, name: str) -> bool:
        return self.prefix + name in self.by_name

    def layers(self, names: tuple[str, ...], joined: str) -> LinearLayers:
        """Linear layers of one input, and the matrix `joined` that they are parts of where there is one."""
        parts = [Linear.of(self.under(name)) for name in names]
        return LinearLayers(
            weights=tuple(part.weight for part in parts),
            biases=tuple(part.bias for part in parts),
            joined=self.vector(f"{joined}.weight") if self.has(f"{joined}.weight") else None,
            joined_bias=self.vector(f"{joined}.bias") if self.has(f"{joined}.bias") else None,
        )


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
    norm: RMSNorm
    qkv: LinearLayers
    rules: HeadRules
    o: Linear

    @classmethod
    def of(cls, spec: ModelSpec, layer: int, norm: RMSNorm, weights: Weights) -> Attention:
        qk_norm = spec.attention.qk_norm
        return cls(
            norm=norm,
            qkv=weights.layers(("q", "k", "v"), "qkv"),
            rules=HeadRules(
                head_dim=spec.head_dim,
                scale=spec.attention.scale,
                window=spec.windows[layer],
                softcap=spec.attention.softcap,
                q_norm=weights.vector("q_norm.weight") if qk_norm else None,
                k_norm=weights.vector("k_norm.weight") if qk_norm else None,
                norm_eps=spec.norm.eps,
            ),
            o=Linear.of(weights.under("o")),
        )

    def forward(self, hidden: Tensor, rotation: Rotation, batch: AttentionBatch, kv: LayerKV, ops: Ops) -> Tensor:
        """hidden [T, H] -> what each token's heads saw [T, Hq * D], the input of `o`."""
        return ops.attend(
            ops.norm_linears(hidden, self.norm.weight, self.norm.eps, self.qkv),
            rotation.cos,
            rotation.sin,
            kv.keys,
            kv.values,
            batch,
            self.rules,
        )


@dataclass(frozen=True)
class DenseMLP:
    norm: RMSNorm
    gate_up: LinearLayers
    down: Linear
    post_norm: RMSNorm | None
    activation: Activation

    @classmethod
    def of(cls, spec: ModelSpec, norm: RMSNorm, post_norm: RMSNorm | None, weights: Weights) -> DenseMLP:
        layers = weights.layers(("gate", "up"), "gate_up")
        return cls(norm, layers, Linear.of(weights.under("down")), post_norm, spec.activation)

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:
        middle = ops.norm_gated(hidden, self.norm.weight, self.norm.eps, self.gate_up, self.activation)
        return add_result(hidden, middle, self.down, self.post_norm, ops)


@dataclass(frozen=True)
class SparseMLP:
    norm: RMSNorm
    experts: ExpertLayers

    @classmethod
    def of(cls, spec: ModelSpec, norm: RMSNorm, weights: Weights) -> SparseMLP:
        assert spec.moe is not None
        experts = ExpertLayers(
            router=weights.matrix("router.weight"),
            gate=weights.matrix("experts.gate.weight"),
            up=weights.matrix("experts.up.weight"),
            down=weights.matrix("experts.down.weight"),
            gate_up=weights.vector("experts.gate_up.weight") if weights.has("experts.gate_up.weight") else None,
            top_k=spec.moe.top_k,
            norm_topk_prob=spec.moe.norm_topk_prob,
            activation=spec.activation,
        )
        return cls(norm, experts)

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:
        return ops.norm_experts_add(hidden, self.norm.weight, self.norm.eps, self.experts)


def add_result(hidden: Tensor, x: Tensor, out: Linear, post_norm: RMSNorm | None, ops: Ops) -> Tensor:
    """hidden + out(x), normed first in the families that do so."""
    if post_norm is None:
        return ops.linear_add(x, out.weight, out.bias, hidden)
    return hidden + post_norm.forward(out.forward(x, ops), ops)


@dataclass(frozen=True)
class Layer:
    attention: Attention
    attention_post_norm: RMSNorm | None
    mlp: DenseMLP | SparseMLP

    @classmethod
    def of(cls, spec: ModelSpec, index: int, weights: Weights) -> Layer:
        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.vector(name), spec.norm.eps)

        def post_norm(name: str) -> RMSNorm | None:
            return norm(name) if spec.norm.sandwich else None

        mlp: DenseMLP | SparseMLP
        if spec.is_sparse(index):
            mlp = SparseMLP.of(spec, norm("mlp_norm.weight"), weights)
        else:
            mlp = DenseMLP.of(spec, norm("mlp_norm.weight"), post_norm("mlp_post_norm.weight"), weights.under("mlp"))
        return cls(
            attention=Attention.of(spec, index, norm("attention_norm.weight"), weights.under("attention")),
            attention_post_norm=post_norm("attention_post_norm.weight"),
            mlp=mlp,
        )

    def forward(
        self,
        hidden: Tensor,
        rotation: Rotation,
        batch: AttentionBatch,
        kv: LayerKV,
        ops: Ops,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """hidden [T, H] -> [T, H]; with `wanted`, int64 [M], those tokens alone: [M, H]."""
        mixed = self.attention.forward(hidden, rotation, batch, kv, ops)
        if wanted is not None:
            mixed, hidden = mixed[wanted], hidden[wanted]
            if not len(wanted):
                return hidden
        hidden = add_result(hidden, mixed, self.attention.o, self.attention_post_norm, ops)
        return self.mlp.forward(hidden, ops)
