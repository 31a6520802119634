"""Not a test: run without Triton's interpreter, it prints whether a kernel is in the cache before and after workers compile.

No GPU is there; without NVIDIA's driver the library that would launch the kernel cannot be linked, and is left away.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import torch
from triton import knobs
from triton.runtime.driver import driver

from trivium.kernels.triton.ahead import Wanted, Workers, launches_noted
from trivium.kernels.triton.rms_norm import rms_norm
from trivium.types.compile_target import CompileTarget

TARGET = CompileTarget("cuda", 90, 32, num_processors=132)


def main() -> None:
    wanted: list[Wanted] = []
    with launches_noted(TARGET, wanted.append):
        for _ in range(2):
            rms_norm(torch.empty(3, 64, device="meta"), torch.empty(64, device="meta"), 1e-6)
    (norm,) = wanted
    before = num_compiled()
    workers = Workers(TARGET, count=1)
    workers.send(Wanted(norm.module, "no_such_kernel", norm.specialization))
    workers.send(norm)
    troubles = workers.end()
    print(json.dumps({"before": before, "after": num_compiled(), "troubles": troubles, "hits": hits(norm)}))


def num_compiled() -> int:
    return len(list(Path(knobs.cache.dir).rglob("*.cubin")))


def hits(wanted: Wanted) -> list[bool]:
    """Whether the cache had what this process asks it for, as a launch does."""
    asked: list[bool] = []
    knobs.compilation.listener = lambda cache_hit, **_: asked.append(cache_hit)
    assert driver.active.get_current_target().arch == TARGET.arch
    getattr(import_module(wanted.module), wanted.kernel).preload(wanted.specialization)
    return asked


if __name__ == "__main__":
    main()
