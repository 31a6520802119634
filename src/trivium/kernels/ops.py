"""Who runs each op: the native kernels, or the torch reference that every provider is measured against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trivium.kernels import embed, experts, gated, linear, paged_attention, rms_norm, rotary, write_kv
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.gated import Activation
from trivium.kernels.native import NativeKernels
from trivium.kernels.weights import LinearWeight, Weight
from trivium.types.errors import ConfigError

Kernels = Literal["auto", "reference", "native"]


@dataclass(frozen=True)
class Provider:
    name: str  # "reference", "native avx2", …
    reason: str  # why this one


@dataclass(frozen=True)
class Ops:
    """What a model may call. Shapes and meaning: the file of the op's name."""

    prepare: Callable[[Weight], LinearWeight]  # once, at load: a matrix as `linear` likes it best
    linear: Callable[[Tensor, LinearWeight, Tensor | None], Tensor]
    embed: Callable[[Tensor, Weight, torch.dtype], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    gated: Callable[[Tensor, Tensor, Activation], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[[Tensor, Tensor, Tensor, AttentionBatch, float, int | None, float | None], Tensor]
    experts: Callable[[Tensor, Tensor, Tensor, Weight, Weight, Weight, Activation], Tensor]
    providers: dict[str, Provider]  # by the op's name
    fallbacks: Counter[str]  # calls so far that a provider handed to the reference, by op and reason


OP_NAMES = ("linear", "embed", "rms_norm", "rotary", "gated", "write_kv", "paged_attention", "experts")


def select_ops(kernels: Kernels, num_threads: int | None = None) -> Ops:
    """`num_threads` is of the native kernels; None: what the process may use."""
    if kernels == "reference":
        return reference_ops("asked for")
    try:
        return native_ops(num_threads=num_threads, reason="asked for" if kernels == "native" else "the fastest here")
    except ConfigError as error:
        if kernels == "native":
            raise
        return reference_ops(str(error))


def native_ops(instruction_set: str | None = None, num_threads: int | None = None, reason: str = "asked for") -> Ops:
    """`instruction_set` is one of `native.usable_instruction_sets()`; None: the best."""
    native = NativeKernels(instruction_set, num_threads)
    provider = Provider(f"native {native.instruction_set}", f"{reason}, {native.num_threads} threads")
    return Ops(
        prepare=native.prepare,
        linear=native.linear,
        embed=native.embed,
        rms_norm=native.rms_norm,
        rotary=native.rotary,
        gated=native.gated,
        write_kv=native.write_kv,
        paged_attention=native.paged_attention,
        experts=native.experts,
        providers=dict.fromkeys(OP_NAMES, provider),
        fallbacks=native.fallbacks,
    )


def reference_ops(reason: str) -> Ops:
    return Ops(
        prepare=lambda weight: weight,
        linear=linear.reference,
        embed=embed.reference,
        rms_norm=rms_norm.reference,
        rotary=rotary.reference,
        gated=gated.reference,
        write_kv=write_kv.reference,
        paged_attention=paged_attention.reference,
        experts=experts.reference,
        providers=dict.fromkeys(OP_NAMES, Provider("reference", reason)),
        fallbacks=Counter(),
    )
