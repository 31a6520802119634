"""What deciding costs: plan and commit of steps in which every row decodes, and the message that tells of them.

    python bench/bench_schedule.py [--rows 1 32 256] [--waiting 1000] [--steps 300]

Microseconds, the least and the median of all steps; nothing is computed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from trivium.engine.messages import Deltas, decode_from_engine, encode
from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.scheduler import Scheduler
from trivium.types.kv import KVGroup, KVSpec
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import SampledRow, Step, StepResult

PROMPT = 32
PARTS = ("plan", "commit", "encode", "decode")

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    print(f"| rows | waiting | {' | '.join(f'{part}, µs' for part in PARTS)} |")
    print("|---" * (2 + len(PARTS)) + "|")
    for num_rows in args.rows:
        for num_waiting in (0, args.waiting):
            seconds = measure(num_rows, num_waiting, args.steps)
            shown = [f"{min(s) * 1e6:.0f} ({statistics.median(s) * 1e6:.0f})" for s in seconds.values()]
            print(f"| {num_rows} | {num_waiting} | {' | '.join(shown)} |")


def measure(num_rows: int, num_waiting: int, num_steps: int) -> dict[str, list[float]]:
    spec = KVSpec(16, (KVGroup((0,)),), num_kv_heads=1, head_dim=1, dtype="float32")
    most_tokens = PROMPT + num_steps + 2
    limits = SchedulerLimits(num_rows, max_batch_tokens=num_rows * PROMPT, max_model_len=most_tokens)
    scheduler = Scheduler(limits, spec, num_blocks=num_rows * (most_tokens // spec.block_size + 1))
    for i in range(num_rows + num_waiting):
        scheduler.add(
            Request(
                id=f"request {i:024d}",
                prompt=tuple(range(i, i + PROMPT)),
                sampling=Sampling(seed=i),
                stopping=Stopping(max_tokens=num_steps + 2, stop_token_ids=(2,)),
                arrival=float(i),
            )
        )
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}

    def timed(part: str, work: Callable[..., T], *args: object) -> T:
        began = time.perf_counter()
        done = work(*args)
        seconds[part].append(time.perf_counter() - began)
        return done

    for number in range(num_steps + 1):
        step: Step | None = timed("plan", scheduler.plan, 0.0)
        assert step is not None
        result = StepResult(step.id, tuple(SampledRow(work.row, (3 + number,)) for work in step.work))
        deltas = timed("commit", scheduler.commit, result, 0.0)
        frame = timed("encode", encode, Deltas(deltas))
        timed("decode", decode_from_engine, frame)
    return {part: samples[1:] for part, samples in seconds.items()}  # the first step is of prompts


if __name__ == "__main__":
    main()
