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


def launch_options(starts_early: bool) -> dict[str, Any]:
    return {"EARLY": True, "launch_pdl": True} if starts_early else {"EARLY": False}
