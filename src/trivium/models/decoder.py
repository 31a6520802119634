"""The one decoder: tokens of a step in, hidden states and logits out. What differs between families is in the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.ops import Ops
from trivium.kernels.weights import LinearWeight, distinct_bytes
from trivium.models.kv_cache import KVCache
from trivium.models.layers import Layer, RMSNorm, Weights
from trivium.models.rope import Rope, Rotation
from trivium.models.spec import ModelSpec


class Decoder:
    """T tokens of any number of rows are computed at once; rows meet only in `attention`, never in the mathematics."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, LinearWeight],
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device | str,
        max_position: int | None = None,
    ) -> None:
        """`weights` holds the names of `weight_shapes(spec)`; positions stay below `max_position` (None: the spec's)."""
        named = Weights(weights)
        self.spec = spec
        self.ops = ops
        self.dtype = dtype
        self.device = torch.device(device)
        self.embedding = named.stored("embedding.weight")
        self.layers = [Layer.of(spec, i, named.under(f"layers.{i}")) for i in range(spec.num_layers)]
        self.final_norm = RMSNorm(named.vector("final_norm.weight"), spec.norm.eps)
        self.lm_head = named.matrix("lm_head.weight")
        # Rounded to the dtype of the hidden states before use, as the models were trained.
        self.embedding_scale = torch.tensor(spec.embedding_scale, dtype=dtype).item()
        layer_ropes = [spec.rope_of_layer(i) for i in range(spec.num_layers)]
        kinds = list(dict.fromkeys(layer_ropes))
        self.ropes = [Rope(kind, max_position or spec.max_position, device) for kind in kinds]
        self.rope_of_layer = [kinds.index(rope) for rope in layer_ropes]
        self.weight_bytes = distinct_bytes(weights.values())
        self.rope_bytes = sum(rope.nbytes for rope in self.ropes)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        attention: Sequence[AttentionBatch],
        kv: KVCache,
    ) -> Tensor:
        """tokens, positions, lengths int64 [T]; attention: one batch per KV group -> hidden [T, H], normed.

        A token's length is max(tokens of the row's prompt, position + 1): the sequence in which it was first
        computed, which some rope scalings go by.
        """
        return self.through_layers(tokens, self.rotations(positions, lengths), attention, kv, self.ops)

    def with_layers(self, count: int) -> Decoder:
        """The same embedding and head around the first `count` layers."""
        shorter = copy(self)
        shorter.layers = self.layers[:count]
        return shorter

    def rotations(self, positions: Tensor, lengths: Tensor) -> list[Rotation]:
        """Of each kind of rope that the layers use."""
        return [rope.rotation(positions, lengths) for rope in self.ropes]

    def through_layers(
        self,
        tokens: Tensor,
        rotations: Sequence[Rotation],
        attention: Sequence[AttentionBatch],
        kv: KVCache,
        ops: Ops,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The part of `forward` that is ops alone, and can be recorded.

        With `wanted`, int64 [M], the result is of those tokens alone: what the last layer would make of the others, of
        which later ones see only the keys and values, is not computed.
        """
        hidden = ops.embed(tokens, self.embedding, self.dtype)
        if self.embedding_scale != 1.0:
            hidden = hidden * self.embedding_scale
        for index, layer in enumerate(self.layers):
            layer_kv = kv.layer(index)
            rotation = rotations[self.rope_of_layer[index]]
            ends_here = wanted if index == len(self.layers) - 1 else None
            hidden = layer.forward(hidden, rotation, attention[layer_kv.group], layer_kv, ops, ends_here)
        return self.final_norm.forward(hidden, ops)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """hidden [M, H], as `forward` gave it -> [M, V], float32 or of hidden's type; in `out` where that is given."""
        if self.spec.final_softcap is None:
            return self.ops.logits(hidden, self.lm_head, out)
        logits = self.ops.logits(hidden, self.lm_head).float()
        logits.div_(self.spec.final_softcap).tanh_().mul_(self.spec.final_softcap)
        return logits.to(hidden.dtype) if out is None else out.copy_(logits)  # rounded alike, in a captured step or not
