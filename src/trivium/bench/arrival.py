"""When requests of an open loop are sent: offsets from the start of a run, drawn from a seed and never from the answers."""

from __future__ import annotations

import random
from typing import Literal

ArrivalKind = Literal["poisson", "constant", "gamma", "burst"]


def arrival_times(
    kind: ArrivalKind, rate: float, count: int, rng: random.Random, *, burstiness: float = 1.0, burst_size: int = 1
) -> list[int]:
    """Nanoseconds, in order, the first at 0; `rate` requests a second on average.

    - poisson: independent gaps, exponential;
    - gamma: independent gaps whose variance is 1/burstiness that of poisson; below 1 they come in clumps, above 1 evenly;
    - burst: `burst_size` requests at once, the bursts a Poisson process of rate / burst_size;
    - constant: equal gaps.
    """
    times: list[int] = []
    now = 0.0  # seconds
    for index in range(count):
        if index:
            now += _gap(kind, rate, index, rng, burstiness, burst_size)
        times.append(round(now * 1e9))
    return times


def _gap(kind: ArrivalKind, rate: float, index: int, rng: random.Random, burstiness: float, burst_size: int) -> float:
    match kind:
        case "poisson":
            return rng.expovariate(rate)
        case "constant":
            return 1 / rate
        case "gamma":
            return rng.gammavariate(burstiness, 1 / (rate * burstiness))
        case "burst":
            return 0.0 if index % burst_size else rng.expovariate(rate / burst_size)
