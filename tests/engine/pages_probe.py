"""Prints how many pages the system had to find for the median step, in which so many rows draw a token each.

python pages_probe.py MODEL ROWS
"""

from __future__ import annotations

import resource
import statistics
import sys

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.request import Request, Sampling, Stopping

STEPS = 30


def main(model: str, num_rows: int) -> None:
    core = EngineCore(EngineOptions(model=model, device="cpu", skip_tokenizer_init=True))
    for row in range(num_rows):
        prompt = tuple(100 * row + place for place in range(8))
        core.add(Request(str(row), prompt, Sampling(seed=0, temperature=0.0), Stopping(max_tokens=STEPS), arrival=0.0))
    faults = []
    while core.has_work:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        core.step()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(statistics.median(faults))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
