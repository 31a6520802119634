"""Not a test: run without Triton's interpreter, it compiles what a mixture of experts launches on an H200 for any number of
tokens, and prints the bytes of shared memory that each kernel takes. No GPU is there.
"""

from __future__ import annotations

import json
from importlib import import_module

import torch

from trivium.kernels.cuda import ops_for
from trivium.kernels.ops import ExpertLayers
from trivium.kernels.triton.ahead import Wanted, launches_noted
from trivium.types.compile_target import CompileTarget

H200 = CompileTarget("cuda", 90, 32, num_processors=132)
TOKENS = (1, 2, 8, 64, 256, 512, 8192)  # each is cut in another way
NUM_EXPERTS, WIDE, HIDDEN = 128, 768, 2048


def main() -> None:
    wanted: list[Wanted] = []
    with torch.device("meta"), launches_noted(H200, wanted.append):
        bf16 = torch.bfloat16
        gate_up = torch.empty(NUM_EXPERTS, 2 * WIDE, HIDDEN, dtype=bf16)
        gate, up = torch.split(gate_up, WIDE, dim=1)
        router, down = torch.empty(NUM_EXPERTS, HIDDEN, dtype=bf16), torch.empty(NUM_EXPERTS, HIDDEN, WIDE, dtype=bf16)
        layers = ExpertLayers(router, gate, up, down, 8, True, "silu", gate_up)
        for num_tokens in TOKENS:
            hidden, norm = torch.empty(num_tokens, HIDDEN, dtype=bf16), torch.empty(HIDDEN)
            ops_for("under test", H200).norm_experts_add(hidden, norm, 1e-6, layers)
    print(json.dumps([[one.kernel, shared_bytes(one)] for one in wanted]))


def shared_bytes(wanted: Wanted) -> int:
    compiled = getattr(import_module(wanted.module), wanted.kernel).preload(wanted.specialization)
    return int(compiled.metadata.shared)


if __name__ == "__main__":
    main()
