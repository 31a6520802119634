"""What kernels that are compiled at their first use are compiled for."""

from __future__ import annotations

from msgspec import Struct


class CompileTarget(Struct, frozen=True):
    backend: str  # as Triton calls it
    arch: int  # 90: compute capability 9.0
    warp_size: int
    num_processors: int  # by which kernels cut their work
