"""The ops of the liar. A module of its own, since it needs torch, which the process that only asks does not."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from trivium.kernels import linear, rms_norm
from trivium.kernels.ops import Ops, Provider
from trivium.kernels.select import reference_ops

MOST_STREAMS = 2


@dataclass
class Pressure:
    """Set by a test once the engine runs: from then on memory is short for large steps."""

    is_on: bool = False


PRESSURE = Pressure()


def ops_of(lie: str) -> Any:
    mine = replace(reference_ops(""), providers=dict.fromkeys(reference_ops("").providers, Provider("liar", "ours")))
    match lie:
        case "a miscompiled op":
            return replace(mine, linear=_miscompiled)
        case "an op wrong for odd shapes only":
            return replace(mine, rms_norm=_wrong_if_odd)
        case "an op that is not there":
            return replace(mine, rotary=_absent)
        case "a result of another shape":
            return replace(mine, gated=lambda gate, up, activation: gate[:, :1])
        case "a replay of what was":
            return replace(mine, capture=lambda work: lambda: None)
        case "too few streams":
            return replace(mine, capture=_Streams())
        case "no memory under pressure":
            return replace(mine, linear=_short_of_memory)
        case "an abort at a bad index":
            return replace(mine, embed=_aborting(mine))
        case "something else for ops":
            return {"linear": linear.reference}
    return None


def _miscompiled(x: Tensor, weight: Any, bias: Any) -> Tensor:
    return linear.reference(x, weight, bias).flip(-1)


def _wrong_if_odd(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    right = rms_norm.reference(x, weight, eps)
    return right * 1.5 if x.shape[-1] % 2 else right


def _absent(*_: Any) -> Any:
    raise NotImplementedError("no kernel image is available")


def _short_of_memory(x: Tensor, weight: Any, bias: Any) -> Tensor:
    if PRESSURE.is_on and len(x) > 24:
        raise MemoryError("out of device memory")
    return linear.reference(x, weight, bias)


def _aborting(ops: Ops) -> Any:
    def embed(ids: Tensor, weight: Any, dtype: Any) -> Tensor:
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < weight.shape[0]):
            os.abort()
        return ops.embed(ids, weight, dtype)

    return embed


class _Streams:
    """Each capture takes one, and there are few. The first is taken by the trial at the start."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, work: Any) -> Any:
        self.taken += 1
        if self.taken > 1 + MOST_STREAMS:
            raise RuntimeError("stream resources are insufficient")
        return work
