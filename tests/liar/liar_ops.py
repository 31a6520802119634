"""The ops of the liar. A module of its own, since it needs torch, which the process that only asks does not."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trivium.kernels import gated, linear, rms_norm, rotary
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
        case "no numbers":
            return replace(mine, rms_norm=lambda x, weight, eps: x * float("nan"))
        case "memory left unwritten":
            return replace(mine, gated=_half_written)
        case "a crash":
            return replace(mine, rotary=_crash)
        case "a slow op":
            return replace(mine, gated=_slow)
        case "a hang":
            return replace(mine, embed=_hang)
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
        case "wrong after a while":
            return replace(mine, rms_norm=_wrong_under_pressure)
        case "an error after a while":
            return replace(mine, rotary=_raises_under_pressure)
        case "no numbers after a while":
            return replace(mine, gated=_no_numbers_under_pressure)
        case "a replay that goes wrong":
            return replace(mine, capture=lambda work: lambda: None if PRESSURE.is_on else work())
        case "a replay that is wrong of this model":
            stale = replace(mine, capture=lambda work: lambda: None if PRESSURE.is_on else work())
            return replace(stale, compiles_at_first_use=True)
        case "an error that passes" | "a device that is lost" | "a device that is gone":
            return replace(mine, rms_norm=partial(_failing, lie))
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


def _half_written(gate: Tensor, up: Tensor, activation: Any) -> Tensor:
    right = gated.reference(gate, up, activation)
    out = torch.empty_like(right)
    out[: len(out) // 2] = right[: len(out) // 2]
    return out


def _crash(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def _slow(gate: Tensor, up: Tensor, activation: Any) -> Tensor:
    time.sleep(0.05)
    return gated.reference(gate, up, activation)


def _hang(*_: Any) -> Any:
    time.sleep(3600)


def _short_of_memory(x: Tensor, weight: Any, bias: Any) -> Tensor:
    if PRESSURE.is_on and len(x) > 24:
        raise MemoryError("out of device memory")
    return linear.reference(x, weight, bias)


def _wrong_under_pressure(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm.reference(x, weight, eps) * (1.5 if PRESSURE.is_on else 1.0)


def _raises_under_pressure(*arguments: Any) -> tuple[Tensor, Tensor]:
    if PRESSURE.is_on:
        raise RuntimeError("error 507899")
    return rotary.reference(*arguments)


def _no_numbers_under_pressure(gate: Tensor, up: Tensor, activation: Any) -> Tensor:
    return gated.reference(gate, up, activation) * (float("nan") if PRESSURE.is_on else 1.0)


# As liar_platform says what is to be done of each.
ERRORS = {
    "an error that passes": "EZ1001: the bus was busy",
    "a device that is lost": "107030: the context is lost",
    "a device that is gone": "ECC: an error that cannot be corrected",
}


def _failing(lie: str, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if PRESSURE.is_on:
        PRESSURE.is_on = lie != "an error that passes"
        raise RuntimeError(ERRORS[lie])
    return rms_norm.reference(x, weight, eps)


def _aborting(ops: Ops) -> Any:
    def embed(ids: Tensor, weight: Any, dtype: Any) -> Tensor:
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < weight.shape[0]):
            os.abort()
        return ops.embed(ids, weight, dtype)

    return embed


class _Streams:
    """Each capture takes one, and there are few."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, work: Any) -> Any:
        self.taken += 1
        if self.taken > MOST_STREAMS:
            raise RuntimeError("stream resources are insufficient")
        return work
