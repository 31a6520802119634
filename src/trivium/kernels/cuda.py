"""The ops on an NVIDIA GPU: Triton kernels, and torch's libraries where they are faster.

Quantized weights go to the reference, and each such call is counted with its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trivium.kernels import (
    activate,
    embed,
    experts,
    layer_norm,
    linear,
    logprobs,
    rotary,
    text_attention,
    write_kv,
)
from trivium.kernels import route as route_op
from trivium.kernels.attention import PLANNED_LENGTHS, AttentionBatch, HeadRules
from trivium.kernels.gated import Activation
from trivium.kernels.graph_capture import GraphCapture
from trivium.kernels.kv_layout import PlainLayout
from trivium.kernels.logit_memory import held_logits, reference_logit_bytes
from trivium.kernels.ops import OP_NAMES, ExpertLayers, Ops, Provider
from trivium.kernels.triton import choose, norm_route
from trivium.kernels.triton.decode_attention import decode_attention
from trivium.kernels.triton.draw import sampled
from trivium.kernels.triton.experts import grouped_experts, stream_down, stream_experts
from trivium.kernels.triton.gated import gated
from trivium.kernels.triton.heads import turn_and_store
from trivium.kernels.triton.prefill_attention import prefill_attention
from trivium.kernels.triton.prompt_attention import prompt_attention, takes_prompts
from trivium.kernels.triton.rms_norm import rms_norm
from trivium.kernels.triton.route import ExpertTiles, Routed, route, route_to_tiles
from trivium.kernels.triton.skinny_linear import skinny_linear
from trivium.kernels.triton.sorted_experts import can_be_described, sorted_experts, sorted_up
from trivium.kernels.weights import LinearLayers, LinearWeight, Weight
from trivium.types.compile_target import CompileTarget

if TYPE_CHECKING:
    from trivium.kernels.cuda_ordered import OrderedKernels

# Whether kernels begin before those ahead of them have ended, where a card can do that (triton/early_launch.py).
STARTS_EARLY = True
# Of a logit: as a product gives it, and where a captured step leaves it.
PRODUCT_LOGIT_BYTES = 6


def target_here() -> CompileTarget:
    card = torch.cuda.get_device_properties(0)
    return CompileTarget("cuda", 10 * card.major + card.minor, card.warp_size, card.multi_processor_count)


def cuda_ops(reason: str) -> Ops:
    return ops_for(reason, target_here())


def ops_for(reason: str, target: CompileTarget) -> Ops:
    """As they run on such a card, which need not be here."""
    starts_early = STARTS_EARLY and target.arch >= 90
    return replace(gpu_ops(reason, target.num_processors, starts_early), compiles_for=target)


def gpu_ops(reason: str, num_processors: int, starts_early: bool = False) -> Ops:
    """`starts_early`: whether kernels may begin before those ahead of them have ended (triton/early_launch.py)."""
    return ops_by(CudaKernels(num_processors, starts_early), reason)


def ops_by(kernels: CudaKernels | OrderedKernels, reason: str) -> Ops:
    """The table of ops, of which the kernels have those that are theirs."""
    triton, library, reference = (Provider(name, reason) for name in ("triton", "torch on the GPU", "reference"))
    providers = dict.fromkeys(OP_NAMES, triton) | {
        "embed": library,
        "rotary": reference,
        "write_kv": reference,
        "logprobs": library,
        "layer_norm": library,
        "activate": library,
        "text_attention": library,
    }
    return Ops(
        prepare=lambda weight: weight,
        linear=kernels.linear,
        embed=kernels.embed,
        rms_norm=rms_norm,
        rotary=rotary.reference,
        gated=gated,
        write_kv=write_kv.reference,
        paged_attention=kernels.paged_attention,
        route=route_op.reference,
        experts=kernels.experts,
        sample=sampled,
        logprobs=logprobs.reference,
        layer_norm=layer_norm.reference,
        activate=activate.reference,
        text_attention=text_attention.reference,
        kv_layout=PlainLayout(),
        record=None,
        packing=None,
        takes_stored_floats=False,
        has_own_threads=False,
        providers=providers,
        fallbacks=kernels.fallbacks,
        fused=kernels,
        capture=GraphCapture(),
        compiles_at_first_use=True,
        joins_layers=True,
        logit_bytes=logit_bytes,
    )


def logit_bytes(num_rows: int, num_tokens: int, device: str) -> int:
    return reference_logit_bytes(num_rows, num_tokens, device) + held_logits(num_rows, num_tokens) * PRODUCT_LOGIT_BYTES


class CudaKernels:
    def __init__(self, num_processors: int, starts_early: bool) -> None:
        self.fallbacks: Counter[str] = Counter()
        self._num_processors = num_processors
        self._starts_early = starts_early
        self._arrivals: Tensor | None = None  # of programs that split a row's keys
        self._skinny_linear = partial(skinny_linear, starts_early=starts_early)

    # --- single ops

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        if not isinstance(weight, Tensor):
            self.fallbacks["linear: quantized weight"] += 1
            return linear.reference(x, weight, bias)
        tiles = choose.skinny_tiles(len(x), *weight.shape)
        return F.linear(x, weight, bias) if tiles is None else self._skinny_linear(x, weight, tiles, bias=bias)

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
        return self._prefill(q.flatten(1), keys, values, batch, rules, out=None).view(q.shape)

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
        return experts.reference(x, ids, shares, gate, up, down, activation)

    # --- several in one

    def norm_linears(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers) -> tuple[Tensor, ...]:
        if layers.joined is None:
            normed = rms_norm(x, norm, eps)
            return tuple(self.linear(normed, *layer) for layer in zip(layers.weights, layers.biases, strict=True))
        tiles = choose.skinny_tiles(len(x), *layers.joined.shape, is_normed=True)
        if tiles is not None:
            y = self._skinny_linear(x, layers.joined, tiles, bias=layers.joined_bias, norm=norm, eps=eps)
        else:
            y = F.linear(rms_norm(x, norm, eps), layers.joined, layers.joined_bias)
        return torch.split(y, [weight.shape[0] for weight in layers.weights], dim=1)

    def linear_add(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
        if not isinstance(weight, Tensor):
            return residual + self.linear(x, weight, bias)
        tiles = choose.skinny_tiles(len(x), *weight.shape)
        if tiles is not None:
            return self._skinny_linear(x, weight, tiles, bias=bias, residual=residual)
        residual.addmm_(x, weight.T)
        return residual if bias is None else residual.add_(bias)

    def norm_gated(self, x: Tensor, norm: Tensor, eps: float, layers: LinearLayers, activation: Activation) -> Tensor:
        if layers.joined is not None:
            num_out, num_in = layers.joined.shape
            tiles = choose.skinny_tiles(len(x), num_out // 2, num_in, is_gated=True, is_normed=True)
            if tiles is not None:
                return self._skinny_linear(
                    x, layers.joined, tiles, bias=layers.joined_bias, norm=norm, eps=eps, activation=activation
                )
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
        if batch.is_decode:
            return self._decode(q, k, v, cos, sin, keys, values, batch, rules)
        turn_and_store(q, k, v, cos, sin, batch.slots, keys, values, rules)
        if (single := batch.num_single) == 0:
            return self._attend_rows(q, k, v, keys, values, batch, rules, out=None)
        out = torch.empty((len(q), q.shape[1]), dtype=q.dtype, device=q.device)
        front = q[:single], k[:single], v[:single]
        self._decode(*front, None, None, keys, values, batch.single_rows, rules, out=out[:single])
        if single < len(batch.context_lens):
            self._attend_rows(q, k, v, keys, values, batch.other_rows, rules, out=out)
        return out

    def norm_experts_add(self, hidden: Tensor, norm: Tensor, eps: float, layers: ExpertLayers) -> Tensor:
        if layers.gate_up is None or not isinstance(layers.down, Tensor) or not isinstance(layers.router, Tensor):
            return self._reference_experts(hidden, norm, eps, layers)
        num_tokens, num_experts = len(hidden), len(layers.router)
        gate_up, down, activation = layers.gate_up, layers.down, layers.activation
        early = self._starts_early
        if num_tokens <= choose.STREAMED_EXPERT_TOKENS:
            routed = self._route_few(hidden, norm, eps, layers)
            return stream_experts(
                hidden, norm, eps, routed, gate_up, down, activation, *choose.stream_tiles(), starts_early=early
            )
        cuts = choose.sorted_tiles(num_tokens * layers.top_k, num_experts, hidden.element_size())
        if cuts is None or not can_be_described(gate_up, down):
            grouped = choose.grouped_tiles(hidden.element_size())
            x, routed, tiles = self._norm_and_route(hidden, norm, eps, layers, grouped[0].rows)
            return grouped_experts(x, routed, tiles, gate_up, down, activation, hidden, *grouped)
        x, routed, tiles = self._norm_and_route(hidden, norm, eps, layers, cuts[0].rows)
        stream_cut = choose.stream_down_tiles(num_tokens)
        if stream_cut is None:
            return sorted_experts(
                x, routed, tiles, gate_up, down, activation, hidden, *cuts, self._num_processors, early
            )
        middle = sorted_up(
            x, tiles, gate_up, activation, layers.top_k, cuts[0], self._num_processors, by_pair=True, starts_early=early
        )
        return stream_down(middle, routed, down, hidden, stream_cut, early)

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor | None) -> Tensor:
        """Of x's type: float32 would only be written and read again by whoever takes the largest."""
        if not isinstance(weight, Tensor) or out is None:
            logits = self.linear(x, weight, None)
            return logits if out is None else out.copy_(logits)
        tiles = choose.skinny_tiles(len(x), *weight.shape)
        return torch.mm(x, weight.T, out=out) if tiles is None else self._skinny_linear(x, weight, tiles, out=out)

    # --- parts of them

    def _decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        keys: Tensor,
        values: Tensor,
        batch: AttentionBatch,
        rules: HeadRules,
        out: Tensor | None = None,
    ) -> Tensor:
        most_keys = batch.block_table.shape[1] * keys.shape[1]
        tiles = choose.decode_tiles(len(q), keys.shape[2], rules.head_dim, most_keys, self._num_processors)
        if self._arrivals is None or self._arrivals.device != q.device:
            # Of a size that always suffices, as captured steps go on using it.
            size = choose.MOST_SPLIT_HEADS * self._num_processors
            self._arrivals = torch.zeros(size, dtype=torch.int32, device=q.device)
        return decode_attention(
            q, k, v, cos, sin, keys, values, batch, rules, tiles, out, self._arrivals, self._starts_early
        )

    def _prefill(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: AttentionBatch,
        rules: HeadRules,
        out: Tensor | None,
    ) -> Tensor:
        tiles = choose.prefill_tiles(rules.head_dim, q.element_size())
        return prefill_attention(q, keys, values, batch, rules, tiles, out)

    def _attend_rows(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: AttentionBatch,
        rules: HeadRules,
        out: Tensor | None,
    ) -> Tensor:
        """Of the rows of `batch` alone; q, k and v are of the whole step, turned."""
        if len(batch.spans) == 1 and _library_attends(*batch.spans[0], q, rules):
            tokens, _ = batch.spans[0]
            result = _library_attention(q[-tokens:], k[-tokens:], v[-tokens:], rules)
            if out is None:
                return result
            out[-tokens:] = result
            return out
        first, num_new = _new_prompts(batch.spans)
        tiles = choose.prompt_tiles(num_new)
        if tiles is None or not takes_prompts(q, k, v, rules):
            return self._prefill(q, keys, values, batch, rules, out)
        out = torch.empty((len(q), q.shape[1]), dtype=q.dtype, device=q.device) if out is None else out
        if first:
            self._prefill(q, keys, values, batch.rows(slice(0, first), batch.slots), rules, out)
        num_rows = len(batch.spans) - first
        prompt_attention(q, k, v, batch.query_starts[first:], num_rows, rules, tiles, out)
        return out

    def _route_few(self, hidden: Tensor, norm: Tensor, eps: float, layers: ExpertLayers) -> Routed:
        assert isinstance(layers.router, Tensor)
        tiles = choose.skinny_tiles(len(hidden), *layers.router.shape, is_normed=True)
        if len(hidden) != 1 or tiles is None:
            return self._norm_and_route(hidden, norm, eps, layers, rows=16)[1]
        logits = self._skinny_linear(hidden, layers.router, tiles, norm=norm, eps=eps, dtype=torch.float32)
        return route(logits, layers.top_k, layers.norm_topk_prob, self._starts_early)

    def _norm_and_route(
        self, hidden: Tensor, norm: Tensor, eps: float, layers: ExpertLayers, rows: int
    ) -> tuple[Tensor, Routed, ExpertTiles]:
        """`rows`: of each tile."""
        assert isinstance(layers.router, Tensor)
        if 0 < len(hidden) <= norm_route.MAX_TOKENS:
            choice = (layers.top_k, layers.norm_topk_prob, rows)
            return norm_route.norm_and_route(hidden, norm, eps, layers.router, *choice, self._starts_early)
        x = rms_norm(hidden, norm, eps)
        routed, tiles = route_to_tiles(self.linear(x, layers.router, None), layers.top_k, layers.norm_topk_prob, rows)
        return x, routed, tiles

    def _reference_experts(self, hidden: Tensor, norm: Tensor, eps: float, layers: ExpertLayers) -> Tensor:
        x = rms_norm(hidden, norm, eps)
        routed = route(self.linear(x, layers.router, None), layers.top_k, layers.norm_topk_prob)
        ids = routed.experts.long()
        return hidden + self.experts(x, ids, routed.shares, layers.gate, layers.up, layers.down, layers.activation)


def _new_prompts(spans: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """(the first of the rows at the end that have no earlier keys, their tokens)."""
    first, num_tokens = len(spans), 0
    while first and spans[first - 1][0] == spans[first - 1][1]:
        first -= 1
        num_tokens += spans[first][0]
    return first, num_tokens


def _library_attends(tokens: int, keys: int, q: Tensor, rules: HeadRules) -> bool:
    return (
        tokens == keys
        and tokens > 0
        and tokens % PLANNED_LENGTHS == 0
        and q.dtype in (torch.bfloat16, torch.float16)
        and rules.head_dim in (64, 128)
        and rules.window is None
        and rules.softcap is None
    )


def _library_attention(q: Tensor, k: Tensor, v: Tensor, rules: HeadRules) -> Tensor:
    """One row's tokens, which have no earlier keys: q [T, Hq * D], k and v [T, Hkv * D] -> [T, Hq * D]."""
    q, k, v = (x.view(len(x), -1, rules.head_dim).transpose(0, 1)[None] for x in (q, k, v))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rules.scale, enable_gqa=True)
    return mixed[0].transpose(0, 1).flatten(1)
