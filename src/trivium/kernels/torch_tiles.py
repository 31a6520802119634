"""Torch is kept from AMX tiles where it would die of them.

oneDNN, which multiplies bfloat16 for torch, asks the processor for the shape of its tiles. A virtual machine may offer tiles
and hide their shape; then oneDNN sets up tiles of no shape, and the first product ends the process with an illegal
instruction. What oneDNN may use it reads from the environment, once, when it is first asked something.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import torch

SETTING = "ONEDNN_MAX_CPU_ISA"
MOST_WITHOUT_TILES = "AVX512_CORE_FP16"


def keep_torch_from_hidden_tiles() -> None:
    """A setting that is there already is the user's. Ours is not left for the processes that this one starts."""
    if SETTING in os.environ or not tiles_are_hidden():
        return
    os.environ[SETTING] = MOST_WITHOUT_TILES
    try:
        ask_library()
    finally:
        del os.environ[SETTING]


def ask_library() -> None:
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        torch.ops.mkldnn._is_mkldnn_bf16_supported()


def tiles_are_hidden(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has tiles and does not tell their shape, or nobody could ask it: that takes an instruction."""
    try:
        flags = next(line for line in processor.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    if "amx_tile" not in flags:
        return False
    try:
        return not import_module("trivium._native").tells_shape_of_tiles()
    except (ImportError, AttributeError):
        return "hypervisor" in flags
