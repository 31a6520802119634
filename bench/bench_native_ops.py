"""How fast the linear layers of SmolLM2-135M run, native against reference: microseconds, and rows per second.

Run: python bench/bench_native_ops.py [--threads N] [--types Q4_1 Q8_0 BF16]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.cases import normal, quantized
from trivium.kernels.native import usable_instruction_sets
from trivium.kernels.ops import Ops
from trivium.kernels.select import native_ops, reference_ops

SHAPES = [(576, 576), (1536, 576), (576, 1536), (49152, 576)]  # out, in
ROWS = [1, 16, 128]


def seconds_per_call(call: Callable[[], object], budget: float = 0.3) -> float:
    """The median of as many calls as fit the budget, after a first one that is not counted."""
    call()
    times: list[float] = []
    while sum(times) < budget or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--types", nargs="+", choices=list(QUANT_TYPES), default=["Q4_1", "Q8_0", "BF16", "F32"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    providers: dict[str, Ops] = {"reference": reference_ops("benchmark")}
    for name in usable_instruction_sets():
        providers[name] = native_ops(name, args.threads)
    random = torch.Generator().manual_seed(0)
    print(f"{args.threads} threads; microseconds per call (rows/s; GB/s of weights)")
    for type in args.types:
        for num_out, num_in in SHAPES:
            weight = quantized(random, type, num_out, num_in)
            for rows in args.rows:
                x = normal(random, rows, num_in)
                cells = []
                for name, ops in providers.items():
                    seconds = seconds_per_call(lambda ops=ops, x=x, weight=weight: ops.linear(x, weight, None))  # type: ignore[misc]
                    bandwidth = weight.data.numel() / seconds / 1e9
                    cells.append(f"{name} {seconds * 1e6:9.0f} ({rows / seconds:8.0f}; {bandwidth:5.1f})")
                print(f"{type:5} {num_out:5}x{num_in:4} {rows:4} rows  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
