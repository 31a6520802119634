"""The weights that a decoder of a given spec is made of: their names here, and their shapes.

Checkpoints name and pack them in their own ways; a family says where each lies there (`Place`).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trivium.models.spec import ModelSpec


class Place(Struct, frozen=True):
    """Where a weight lies in a checkpoint. In `name`, {i} is the layer, and {e} the expert: those are stacked."""

    name: str
    half: int | None = None  # of the rows, where two weights are stored as one: 0 is the first half, 1 the second
    interleaved_heads: bool = False  # rows of a head stored as 0, n/2, 1, n/2 + 1, … for a rotation of neighbours


# By the weight's name with {i} for the layer; the first place that the checkpoint has is taken.
Places = Mapping[str, tuple[Place, ...]]

NORM_SUFFIX = "norm.weight"  # the weights that `NormSpec.offset` is added to, and only they, end so
ROUTER_SUFFIX = "router.weight"  # those that choose experts


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every weight's name and shape, in the order in which a step uses them."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (spec.vocab_size, spec.hidden_size)}
    for layer in range(spec.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(spec, layer).items()}
    shapes["final_norm.weight"] = (spec.hidden_size,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def _layer_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    shapes = {"attention_norm.weight": (hidden,), **_attention_shapes(spec), "mlp_norm.weight": (hidden,)}
    if spec.norm.sandwich:
        shapes |= {"attention_post_norm.weight": (hidden,), "mlp_post_norm.weight": (hidden,)}
    if spec.is_sparse(layer):
        return shapes | _expert_shapes(spec)
    wide = spec.intermediate_size
    shapes |= {"mlp.gate.weight": (wide, hidden), "mlp.up.weight": (wide, hidden), "mlp.down.weight": (hidden, wide)}
    if spec.mlp_bias:
        shapes |= {"mlp.gate.bias": (wide,), "mlp.up.bias": (wide,), "mlp.down.bias": (hidden,)}
    return shapes


def _attention_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, queries, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attention.q.weight": (queries, hidden),
        "attention.k.weight": (keys, hidden),
        "attention.v.weight": (keys, hidden),
        "attention.o.weight": (hidden, queries),
    }
    if spec.attention.qkv_bias:
        shapes |= {"attention.q.bias": (queries,), "attention.k.bias": (keys,), "attention.v.bias": (keys,)}
    if spec.attention.output_bias:
        shapes |= {"attention.o.bias": (hidden,)}
    if spec.attention.qk_norm:
        shapes |= {"attention.q_norm.weight": (spec.head_dim,), "attention.k_norm.weight": (spec.head_dim,)}
    return shapes


def _expert_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    assert spec.moe is not None
    experts, wide, hidden = spec.moe.num_experts, spec.moe.intermediate_size, spec.hidden_size
    return {
        "router.weight": (experts, hidden),
        "experts.gate.weight": (experts, wide, hidden),
        "experts.up.weight": (experts, wide, hidden),
        "experts.down.weight": (experts, hidden, wide),
    }
