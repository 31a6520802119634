"""Not a test: run without Triton's interpreter, it prints what an engine launched that a dry run of it had not foreseen.

    python ahead_probe.py MODEL_DIRECTORY [deterministic]        one JSON object on standard output

No GPU is there. The engine runs on the CPU with Triton's ops, whose launches are noted instead of made, so that it computes
nothing of value; the token that is always drawn is 0.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import torch

from trivium.config.options import EngineOptions
from trivium.engine import plan as engine_plan
from trivium.engine.core import EngineCore
from trivium.engine.dry_run import dry_run
from trivium.execute.decode_graphs import captured_sizes
from trivium.kernels.select import gpu_ops_for
from trivium.kernels.triton.ahead import Wanted, launches_noted
from trivium.types.compile_target import CompileTarget
from trivium.types.request import Request, Sampling, Stopping

TARGET = CompileTarget("cuda", 90, 32, num_processors=132)
MAX_ROWS = 80
GREEDY = Sampling(seed=0, temperature=0.0)
SAMPLINGS = (
    Sampling(seed=0, temperature=0.7),
    Sampling(seed=0, temperature=0.7, top_k=3),
    Sampling(seed=0, temperature=0.7, top_p=0.5, logprobs=2),
    Sampling(seed=0, temperature=0.7, min_p=0.1, presence_penalty=0.5),
    Sampling(seed=0, temperature=0.0, frequency_penalty=0.5),
)
PROMPTS = (1, 2, 3, 7, 16, 33, 100, 128, 257, 600, 1111)


def main(directory: str, deterministic: bool) -> None:
    foreseen: list[Wanted] = []
    launched: list[Wanted] = []
    core_ops = gpu_ops_for(TARGET, "under test", deterministic)

    def draw_zero(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return torch.zeros_like(core_ops.sample(logits, batch))

    ops = dataclasses.replace(core_ops, sample=draw_zero, capture=lambda work: work)
    engine_plan.select_ops = lambda *_: ops  # type: ignore[assignment]
    options = EngineOptions(
        model=directory, load_format="dummy", skip_tokenizer_init=True, device="cpu", dtype="bfloat16",
        kv_cache_bytes=64 << 20, max_num_seqs=MAX_ROWS, max_model_len=2048,
        deterministic=deterministic,
    )  # fmt: skip
    with launches_noted(TARGET, launched.append):
        core = EngineCore(options)
        serve(core)
    forget_launches(launched)
    with launches_noted(TARGET, foreseen.append):
        dry_run(core.config, core._spec, core_ops)
    missing = set(launched) - set(foreseen)
    print(json.dumps({"launched": len(launched), "missing": [told(one) for one in missing]}))


def told(wanted: Wanted) -> str:
    parts = json.loads(wanted.specialization)
    return f"{wanted.kernel} {parts['signature']} {parts['constant_vals']} {parts['attrs_keys']} {parts['attrs_vals']}"


def serve(core: EngineCore) -> None:
    """Prompts of many lengths alone and together, and rows of every captured number."""
    for length in PROMPTS:
        run(core, [length])
    run(core, PROMPTS)
    for size in captured_sizes(MAX_ROWS):
        run(core, [3] * size)
    for sampling in SAMPLINGS:
        run(core, [3], sampling)
        run(core, [3, 4, 5], sampling)


def run(core: EngineCore, lengths: Any, sampling: Sampling = GREEDY) -> None:
    for index, length in enumerate(lengths):
        core.add(Request(f"{index}", (5,) * length, sampling, Stopping(max_tokens=3), arrival=0.0))
    while core.has_work:
        core.step()


def forget_launches(launched: list[Wanted]) -> None:
    """So that the same are noted again."""
    for module, kernel in {(one.module, one.kernel) for one in launched}:
        getattr(sys.modules[module], kernel).device_caches.clear()


if __name__ == "__main__":
    main(sys.argv[1], deterministic="deterministic" in sys.argv[2:])
