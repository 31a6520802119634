"""The table of ops that a model may call, whoever provides them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trivium.kernels.activate import ElementFunction
from trivium.kernels.attention import AttentionBatch, HeadRules
from trivium.kernels.gated import Activation
from trivium.kernels.kv_layout import KVLayout
from trivium.kernels.large_pages import LargePages
from trivium.kernels.logit_memory import reference_logit_bytes
from trivium.kernels.sample import SampleBatch
from trivium.kernels.weights import LinearLayers, LinearWeight, PackedTensor, Weight
from trivium.types.compile_target import CompileTarget


@dataclass(frozen=True)
class Provider:
    name: str  # "reference", "native avx2", …
    reason: str  # why this one


# capture(work) runs `work` once without effect, noting what it launches on the device; the returned call launches all of
# that again, on the same memory. `work` was run before, so that nothing in it is prepared for the first time.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True)
class ExpertLayers:
    """Gated feed-forward layers, of which each token goes through the `top_k` that the router finds likeliest."""

    router: LinearWeight  # [E, H]
    gate: LinearWeight  # [E, F, H]
    up: LinearWeight  # [E, F, H]
    down: LinearWeight  # [E, H, F]
    top_k: int
    norm_topk_prob: bool  # the shares of the chosen experts sum to 1
    activation: Activation
    gate_up: Tensor | None = None  # [E, 2F, H]: gate and up as one, where the provider asked for that


class Graph(Protocol):
    """A step's ops, recorded once and replayed for any number of tokens."""

    def run(
        self,
        tokens: Tensor,
        rotations: Sequence[tuple[Tensor, Tensor]],
        attention: Sequence[AttentionBatch],
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [T, H] of all tokens; with `wanted`, int64 [M] in rising order, of those: [M, H]."""


@dataclass(frozen=True)
class Packing:
    """How a provider lays weights, for whoever keeps the result."""

    version: int  # of the layout; what was laid by another cannot be read
    data_shape: Callable[[str, tuple[int, ...]], tuple[int, ...]]  # of the bytes of a weight of a type and shape
    checksum: Callable[[Tensor], int]  # of bytes
    memory: LargePages  # where packed weights lie
    pack_as: Callable[[Weight, str], PackedTensor]  # in another form: a type named below. Raises DoesNotFit
    rows_type: str  # the type of weights that are packed as rows of bytes
    takes_rows_of: Callable[[int], bool]  # whether weights of so many columns can be
    units_types: Mapping[str, str]  # types that can be units of bytes, and what they are then
    short_type: str  # of bfloat16 weights whose bits are kept in fewer
    sums_bytes: bool  # whether one instruction sums products of bytes; else blocks of four bits are multiplied faster
    makes_bytes: bool  # whether bytes of units are made as fast as they are multiplied
    lengthens: bool  # whether bfloat16 is made of short weights as fast as they are read


class DoesNotFit(Exception):
    """Why a weight cannot be in a form."""


class NotRecordable(Exception):
    """Why a step cannot be replayed."""


# steps(ops, tokens, rotations, attention) is code that runs eagerly on tensors; it is called once, on values that only
# note what is done with them. Then come the numbers of rotations and of KV groups. Raises NotRecordable.
Record = Callable[[Callable[[Any, Any, Any, Any], Any], int, int], Graph]


class FusedOps(Protocol):
    """Several ops in one pass, for a provider that has them so. What each computes: the method of `Ops` of its name."""

    def norm_linears(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers) -> tuple[Tensor, ...]: ...

    def linear_add(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, residual: Tensor) -> Tensor: ...

    def norm_gated(
        self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers, activation: Activation
    ) -> Tensor: ...

    def attend(
        self,
        projected: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: AttentionBatch,
        rules: HeadRules,
    ) -> Tensor: ...

    def norm_experts_add(self, hidden: Tensor, norm: Tensor, eps: float, experts: ExpertLayers) -> Tensor: ...

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor | None) -> Tensor: ...


@dataclass(frozen=True)
class Ops:
    """What a model may call. Shapes and meaning: the file of the op's name."""

    prepare: Callable[[Weight], LinearWeight]  # once, at load: a matrix as `linear`, a stack as `experts` likes it best
    linear: Callable[[Tensor, LinearWeight, Tensor | None], Tensor]
    embed: Callable[[Tensor, Weight, torch.dtype], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    gated: Callable[[Tensor, Tensor, Activation], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[[Tensor, Tensor, Tensor, AttentionBatch, float, int | None, float | None], Tensor]
    route: Callable[[Tensor, int, bool], tuple[Tensor, Tensor]]
    experts: Callable[[Tensor, Tensor, Tensor, LinearWeight, LinearWeight, LinearWeight, Activation], Tensor]
    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    activate: Callable[[Tensor, ElementFunction], Tensor]
    text_attention: Callable[[Tensor, Tensor, Tensor, Tensor, float, int | None], Tensor]
    kv_layout: KVLayout  # of the caches that write_kv and paged_attention take
    sample: Callable[[Tensor, SampleBatch], Tensor]
    logprobs: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
    record: Record | None  # graph mode, where the provider has it
    has_own_threads: bool  # torch's would only compete with them
    packing: Packing | None  # of the weights that `prepare` packs
    takes_stored_floats: bool  # float matrices in the type they are stored in; else in that of the activations
    providers: dict[str, Provider]  # by the op's name
    fallbacks: Counter[str]  # calls so far that a provider handed to the reference, by op and reason
    fused: FusedOps | None = None
    capture: Capture | None = None  # replays of fixed shapes, where the device has them
    compiles_at_first_use: bool = False  # so that the first step of each kind takes long
    compiles_for: CompileTarget | None = None  # where others can do it before, having the same target
    joins_layers: bool = False  # whether weights of one input are laid as one matrix at load
    # Ops that give a row the same bits whatever rows are beside it and however its tokens were cut into steps.
    invariant: frozenset[str] = frozenset()
    # Of a recorded step, between two calls of attention, at most, with packed weights of these types. None: all.
    tokens_together: Callable[[Iterable[str]], int] | None = None
    # (rows, tokens of the vocabulary, torch's device type): what their logits and the choice from them take at most
    logit_bytes: Callable[[int, int, str], int] = reference_logit_bytes
    # (query heads, key heads, size of a head, longest context, window): what attention takes at most beside queries and result
    attention_bytes: Callable[[int, int, int, int, int | None], int] = lambda *_: 0

    def norm_linears(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers) -> tuple[Tensor, ...]:
        """x [T, in], normed, through each layer -> [T, out] of each."""
        if self.fused is not None:
            return self.fused.norm_linears(x, norm, eps, layers)
        normed = self.rms_norm(x, norm, eps)
        return tuple(self.linear(normed, *layer) for layer in zip(layers.weights, layers.biases, strict=True))

    def linear_add(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
        """residual + linear(x), which may take the place of `residual`."""
        if self.fused is not None:
            return self.fused.linear_add(x, weight, bias, residual)
        return residual + self.linear(x, weight, bias)

    def norm_gated(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers, activation: Activation) -> Tensor:
        """x [T, H], normed, through gate and up -> activation(gate) * up [T, F]."""
        if self.fused is not None:
            return self.fused.norm_gated(x, norm, eps, layers, activation)
        gate, up = self.norm_linears(x, norm, eps, layers)
        return self.gated(gate, up, activation)

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
        """Queries, keys and values, each [T, heads * D], which may be written over -> [T, Hq * D].

        Heads are normed and turned; the new keys and values join the cache, then each token sees them and its past.
        """
        if self.fused is not None:
            return self.fused.attend(projected, cos, sin, keys, values, batch, rules)
        q, k, v = (part.view(len(part), -1, rules.head_dim) for part in projected)
        del projected  # each tensor goes as soon as it has been used: a step holds several of its size otherwise
        if rules.q_norm is not None and rules.k_norm is not None:
            q, k = self.rms_norm(q, rules.q_norm, rules.norm_eps), self.rms_norm(k, rules.k_norm, rules.norm_eps)
        q, k = self.rotary(q, k, cos, sin)
        self.write_kv(k, v, keys, values, batch.slots)
        del k, v
        return self.paged_attention(q, keys, values, batch, rules.scale, rules.window, rules.softcap).flatten(1)

    def norm_experts_add(self, hidden: Tensor, norm: Tensor, eps: float, experts: ExpertLayers) -> Tensor:
        """hidden + what its likeliest experts make of each token, normed; may take the place of `hidden`."""
        if self.fused is not None:
            return self.fused.norm_experts_add(hidden, norm, eps, experts)
        x = self.rms_norm(hidden, norm, eps)
        ids, shares = self.route(self.linear(x, experts.router, None), experts.top_k, experts.norm_topk_prob)
        return hidden + self.experts(x, ids, shares, experts.gate, experts.up, experts.down, experts.activation)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor | None = None) -> Tensor:
        """x [M, H] through the output projection [V, H] -> [M, V], float32 or of x's type; in `out` where that is given."""
        if self.fused is not None:
            return self.fused.logits(x, weight, out)
        logits = self.linear(x, weight, None).float()
        return logits if out is None else out.copy_(logits)


OP_NAMES = (
    "linear",
    "embed",
    "rms_norm",
    "rotary",
    "gated",
    "write_kv",
    "paged_attention",
    "route",
    "experts",
    "sample",
    "logprobs",
    "layer_norm",
    "activate",
    "text_attention",
)

ENCODER_OPS = ("layer_norm", "activate", "text_attention")  # that only encoders use
