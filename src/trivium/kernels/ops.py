"""Who runs each op: the native kernels, or the torch reference that every provider is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trivium.kernels import embed, experts, gated, linear, paged_attention, rms_norm, rotary, write_kv
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.gated import Activation
from trivium.kernels.weights import Weight

Kernels = Literal["auto", "reference", "native"]


@dataclass(frozen=True)
class Provider:
    name: str  # "reference", "native avx2", …
    reason: str  # why this one


@dataclass(frozen=True)
class Ops:
    """What a model may call. Shapes and meaning: the file of the op's name."""

    linear: Callable[[Tensor, Weight, Tensor | None], Tensor]
    embed: Callable[[Tensor, Weight, torch.dtype], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    gated: Callable[[Tensor, Tensor, Activation], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[[Tensor, Tensor, Tensor, AttentionBatch, float, int | None, float | None], Tensor]
    experts: Callable[[Tensor, Tensor, Tensor, Weight, Weight, Weight, Activation], Tensor]
    providers: dict[str, Provider]  # by the op's name


OP_NAMES = ("linear", "embed", "rms_norm", "rotary", "gated", "write_kv", "paged_attention", "experts")


def select_ops(kernels: Kernels) -> Ops:
    return reference_ops("the native kernels are not there yet")


def reference_ops(reason: str) -> Ops:
    return Ops(
        linear=linear.reference,
        embed=embed.reference,
        rms_norm=rms_norm.reference,
        rotary=rotary.reference,
        gated=gated.reference,
        write_kv=write_kv.reference,
        paged_attention=paged_attention.reference,
        experts=experts.reference,
        providers={name: Provider("reference", reason) for name in OP_NAMES},
    )
