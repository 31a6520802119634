"""Who runs each op: the native kernels, or the torch reference that every provider is measured against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from trivium.kernels import (
    activate,
    embed,
    experts,
    gated,
    layer_norm,
    linear,
    logprobs,
    paged_attention,
    rms_norm,
    rotary,
    route,
    sample,
    text_attention,
    write_kv,
)
from trivium.kernels.kv_layout import LaneLayout, PlainLayout
from trivium.kernels.native import BYTE_CACHE_SETS, NativeKernels
from trivium.kernels.native_program import record, tokens_together
from trivium.kernels.ops import OP_NAMES, Graph, Ops, Provider
from trivium.types.compile_target import CompileTarget
from trivium.types.errors import ConfigError

Kernels = Literal["auto", "reference", "native", "triton"]
KERNELS_OF: dict[str, Kernels] = {"cpu": "native", "cuda": "triton"}  # by torch's device type


def select_ops(
    kernels: Kernels,
    device: str = "cpu",
    num_threads: int | None = None,
    dtype: str = "float32",
    instruction_set: str | None = None,
    deterministic: bool = False,
) -> Ops:
    """`num_threads` and `instruction_set` are of the native kernels; None: what the process may use, and the best that
    the machine has. `dtype` is of the activations. `deterministic`: of two kernels for a device, those that sum in one
    order in any batch; which ops do so, `Ops.invariant` says."""
    if instruction_set is not None and (kernels == "reference" or device != "cpu"):
        raise ConfigError(f"instruction_set={instruction_set} is of native kernels on a CPU, which are not asked for")
    if kernels == "reference":
        return reference_ops("asked for")
    device_type = device.partition(":")[0]
    if kernels != "auto" and kernels != KERNELS_OF.get(device_type):
        raise ConfigError(f"{kernels} kernels do not run on {device}")
    if device_type not in KERNELS_OF:
        return reference_ops(f"there are no kernels of our own for {device_type}, and its platform brings none")
    if device_type == "cuda":
        return _gpu_ops(kernels, deterministic)
    try:
        if dtype != "float32":
            raise ConfigError(f"the native kernels take float32 activations, and these are {dtype}")
        is_asked_for = kernels == "native" or instruction_set is not None
        return native_ops(instruction_set, num_threads, "asked for" if is_asked_for else "the fastest here")
    except ConfigError as error:
        if kernels == "native" or instruction_set is not None:
            raise
        return reference_ops(str(error))


def _gpu_ops(kernels: Kernels, deterministic: bool) -> Ops:
    try:  # where there is no GPU there is often no triton either
        from trivium.kernels.cuda import target_here
        from trivium.kernels.triton.cache_folder import make_cache_usable
    except ImportError as error:
        if kernels == "triton":
            raise ConfigError(f"the triton kernels cannot be loaded: {error}") from error
        return reference_ops(f"triton cannot be loaded: {error}")
    make_cache_usable()
    is_asked_for = kernels == "triton" or deterministic
    return gpu_ops_for(target_here(), "asked for" if is_asked_for else "the fastest here", deterministic)


def gpu_ops_for(target: CompileTarget, reason: str, deterministic: bool) -> Ops:
    """As they run on such a card, which need not be here; triton must be."""
    from trivium.kernels.cuda import ops_for
    from trivium.kernels.cuda_ordered import ordered_gpu_ops

    return replace(ordered_gpu_ops(reason), compiles_for=target) if deterministic else ops_for(reason, target)


def native_ops(instruction_set: str | None = None, num_threads: int | None = None, reason: str = "asked for") -> Ops:
    """`instruction_set` is one of `native.usable_instruction_sets()`; None: the best."""
    native = NativeKernels(instruction_set, num_threads)
    provider = Provider(f"native {native.instruction_set}", f"{reason}, {native.num_threads} threads")

    def record_natively(steps: Callable[[Any, Any, Any, Any], Any], num_rotations: int, num_groups: int) -> Graph:
        return record(steps, num_rotations, num_groups, native)

    return Ops(
        prepare=native.prepare,
        linear=native.linear,
        embed=native.embed,
        rms_norm=native.rms_norm,
        rotary=native.rotary,
        gated=native.gated,
        write_kv=native.write_kv,
        paged_attention=native.paged_attention,
        route=native.route,
        experts=native.experts,
        layer_norm=native.layer_norm,
        activate=native.activate,
        text_attention=native.text_attention,
        kv_layout=LaneLayout(native.instruction_set in BYTE_CACHE_SETS),
        sample=native.sample,
        logprobs=native.logprobs,
        record=record_natively,
        has_own_threads=True,
        packing=native.packing,
        takes_stored_floats=True,
        providers=dict.fromkeys(OP_NAMES, provider),
        fallbacks=native.fallbacks,
        invariant=frozenset(OP_NAMES),
        logit_bytes=native.logit_bytes,
        tokens_together=partial(tokens_together, native),
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
        route=route.reference,
        experts=experts.reference,
        layer_norm=layer_norm.reference,
        activate=activate.reference,
        text_attention=text_attention.reference,
        kv_layout=PlainLayout(),
        sample=sample.reference,
        logprobs=logprobs.reference,
        record=None,
        has_own_threads=False,
        packing=None,
        takes_stored_floats=False,
        attention_bytes=paged_attention.attention_bytes,
        providers=dict.fromkeys(OP_NAMES, Provider("reference", reason)),
        fallbacks=Counter(),
    )
