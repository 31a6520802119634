"""The table of ops that a model may call, whoever provides them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.gated import Activation
from trivium.kernels.weights import LinearWeight, Weight


@dataclass(frozen=True)
class Provider:
    name: str  # "reference", "native avx2", …
    reason: str  # why this one


class Graph(Protocol):
    """A step's ops, recorded once and replayed for any number of tokens."""

    def run(
        self, tokens: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], attention: Sequence[AttentionBatch]
    ) -> Tensor: ...


class NotRecordable(Exception):
    """Why a step cannot be replayed."""


# steps(ops, tokens, rotations, attention) is code that runs eagerly on tensors; it is called once, on values that only
# note what is done with them. Then come the numbers of rotations and of KV groups. Raises NotRecordable.
Record = Callable[[Callable[[Any, Any, Any, Any], Any], int, int], Graph]


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
    record: Record | None  # graph mode, where the provider has it
    has_own_threads: bool  # torch's would only compete with them
    takes_stored_floats: bool  # float matrices in the type they are stored in; else in that of the activations
    providers: dict[str, Provider]  # by the op's name
    fallbacks: Counter[str]  # calls so far that a provider handed to the reference, by op and reason


OP_NAMES = ("linear", "embed", "rms_norm", "rotary", "gated", "write_kv", "paged_attention", "experts")
