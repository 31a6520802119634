"""Kernels that begin before the one ahead of them has ended (programmatic dependent launch, from compute capability 9.0 on).

Such a kernel may read weights at once; everything that others write it touches only after `inputs_are_there`, which every one
of its programs calls. By then all kernels before it have ended, so that no more than two ever overlap.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def inputs_are_there(EARLY: tl.constexpr):
    """Waits for the end of the kernel ahead, then lets the one behind begin."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch_to_cache(rows, NUM_IN: tl.constexpr):
    """The first 1,024 elements, of 2 bytes each, of rows of NUM_IN (pointers [N, 1])."""
    place = tl.minimum(tl.arange(0, 16) * 64, NUM_IN - 1)[None, :]  # one of each line of 128 bytes
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [rows + place], dtype=tl.int32, is_pure=False, pack=1
    )


def launch_options(starts_early: bool) -> dict[str, Any]:
    return {"EARLY": True, "launch_pdl": True} if starts_early else {"EARLY": False}
