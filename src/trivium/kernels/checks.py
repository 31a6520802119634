"""Checks of the kernels themselves: built, loaded, and right in a trial on this machine."""

from __future__ import annotations

import os

import torch

from trivium.kernels import linear
from trivium.kernels.native import NativeKernels, load_extension
from trivium.kernels.torch_tiles import MOST_WITHOUT_TILES, SETTING, tiles_are_hidden
from trivium.types.checks import Check
from trivium.types.errors import ConfigError

# Instruction sets that the processor may offer, by the flag that says so, as /proc/cpuinfo spells it.
FLAG_OF = {
    "avx2": "avx2",
    "avx512": "avx512bw",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx": "amx_int8",
}

INSTALL_AGAIN = "install trivium again, where a C++ compiler is"


def check_torch_op() -> Check:
    """By calling it."""
    product = torch.eye(3) @ torch.arange(9, dtype=torch.float32).view(3, 3)
    right = product.flatten().tolist() == [float(number) for number in range(9)]
    remedy = "" if right else "install torch anew: its product of matrices is wrong"
    return Check("torch-op", "ok" if right else "fail", f"torch {torch.__version__}", "a right product", remedy)


def check_torch_tiles(are_hidden: bool | None = None) -> Check:
    """Products of bfloat16 by torch, which the reference runs; native kernels do not ask for the shape of tiles."""
    hidden = tiles_are_hidden() if are_hidden is None else are_hidden
    wanted = "instructions that this machine runs"
    if not hidden:
        return Check("torch-tiles", "ok", "torch chooses", wanted, "")
    held = os.environ.get(SETTING, MOST_WITHOUT_TILES)
    why = (
        "this virtual machine has AMX and hides the shape of its tiles, of which torch would die: "
        "the reference runs without them; native kernels use them"
    )
    return Check("torch-tiles", "warn", f"at most {held}", wanted, why)


def check_native_kernels() -> Check:
    wanted = "built, and right in a trial"
    try:
        native = NativeKernels(num_threads=1)
    except ConfigError as error:
        cost = "without native kernels the reference runs, many times slower"
        return Check("native-kernels", "warn", str(error), wanted, f"{INSTALL_AGAIN}: {cost}")
    x, weight = (
        torch.arange(64, dtype=torch.float32).view(2, 32) / 64,
        torch.arange(512, dtype=torch.float32).view(16, 32),
    )
    expected, got = linear.reference(x, weight, None), native.linear(x, native.prepare(weight), None)
    right = torch.allclose(expected, got, rtol=1e-4)
    remedy = "" if right else "run with --kernels reference, and report the processor"
    return Check("native-kernels", "ok" if right else "fail", native.instruction_set, wanted, remedy)


def check_instruction_sets(flags: frozenset[str]) -> Check:
    """`flags`: of the processor. An instruction set that it has, and that is not used, is a loss of speed."""
    wanted = "every built set that the processor has"
    try:
        found = load_extension().instruction_sets()
    except ConfigError as error:
        return Check("instruction-sets", "warn", str(error), wanted, INSTALL_AGAIN)
    lost = [(name, why) for name, usable, why in found if not usable and FLAG_OF.get(name) in flags]
    usable = ", ".join(name for name, is_usable, _ in found if is_usable)
    if lost:
        name, why = lost[0]
        return Check("instruction-sets", "warn", f"{usable}; not {name}: {why}", wanted, "report the processor")
    return Check("instruction-sets", "ok", usable, wanted, "")
