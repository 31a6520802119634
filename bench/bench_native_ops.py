"""How fast the linear layers of some models run, native against reference: microseconds, and gigabytes of weights a second.

Run: python bench/bench_native_ops.py [--threads N] [--types Q4_1 Q8_0 BF16] [--rows 1 16 128]

Providers take turns, and the least of many turns counts, so that what else runs on the machine disturbs the ratios little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.cases import normal, quantized
from trivium.kernels.dequantize import dequantize
from trivium.kernels.native import usable_instruction_sets
from trivium.kernels.ops import Ops
from trivium.kernels.select import native_ops, reference_ops
from trivium.kernels.weights import LinearWeight, QuantizedTensor

SHAPES = {  # out, in
    "smollm2": [(576, 576), (1536, 576), (576, 1536), (49152, 576)],
    "llama1b": [(2048, 2048), (8192, 2048), (2048, 8192)],
}
ROWS = [1, 16, 128]


def least_seconds(calls: dict[str, Callable[[], object]], budget: float = 0.2) -> dict[str, float]:
    """Of each call, over as many turns as fit the budget; the first turn is not counted."""
    least = dict.fromkeys(calls, float("inf"))
    spent, turns = 0.0, 0
    while spent < budget * len(calls) or turns < 4:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            if turns > 0:
                least[name] = min(least[name], seconds)
            spent += seconds
        turns += 1
    return least


def prepared(ops: Ops, weight: QuantizedTensor, is_reference: bool) -> LinearWeight:
    """As an engine would hold it: float types are expanded for the reference."""
    if is_reference and QUANT_TYPES[weight.type].block_elements == 1:
        return dequantize(weight, torch.float32)
    return ops.prepare(weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--types", nargs="+", choices=list(QUANT_TYPES), default=["Q4_1", "Q8_0", "BF16", "F16", "F32"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--model", choices=list(SHAPES), default="smollm2")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    providers: dict[str, Ops] = {"reference": reference_ops("benchmark")}
    for name in usable_instruction_sets():
        providers[name] = native_ops(name, args.threads)
    random = torch.Generator().manual_seed(0)
    print(f"{args.threads} threads; microseconds per call (GB/s of weights; times as fast as the reference)")
    for type in args.types:
        for num_out, num_in in SHAPES[args.model]:
            weight = quantized(random, type, num_out, num_in)
            weights = {name: prepared(ops, weight, name == "reference") for name, ops in providers.items()}
            for rows in args.rows:
                x = normal(random, rows, num_in)
                seconds = least_seconds(
                    {
                        name: lambda ops=ops, x=x, weight=weights[name]: ops.linear(x, weight, None)  # type: ignore[misc]
                        for name, ops in providers.items()
                    }
                )
                cells = [
                    f"{name} {s * 1e6:8.0f} ({weight.data.numel() / s / 1e9:5.1f}; {seconds['reference'] / s:5.2f})"
                    for name, s in seconds.items()
                ]
                print(f"{type:5} {num_out:5}x{num_in:4} {rows:4} rows  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
