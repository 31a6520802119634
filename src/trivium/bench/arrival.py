"""When requests of an open loop are sent: offsets from the start of a run, drawn from a seed and never from the answers."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Literal

ArrivalKind = Literal["poisson", "constant", "gamma", "burst"]


def arrival_times(
    kind: ArrivalKind, rate: float, count: int, rng: random.Random, *, burstiness: float = 1.0, burst_size: int = 1
) -> list[int]:
    """Nanoseconds, in order, the first at 0; `rate` requests a second.

    - poisson: independent gaps, exponential;
    - gamma: independent gaps whose variance is 1/burstiness that of poisson; below 1 they come in clumps, above 1 evenly;
    - burst: `burst_size` requests at once, the bursts a Poisson process of rate / burst_size;
    - constant: equal gaps.

    Drawn gaps are scaled so that they last as long as the rate says: a short run offers the rate that was asked for, not
    the one that its few draws happened to have.
    """
    size = burst_size if kind == "burst" else 1
    gaps = [_gap(kind, rng, burstiness) for _ in range((count - 1) // size)]
    scale = len(gaps) * size / rate / sum(gaps) if gaps else 0.0
    moments = accumulate((gap * scale for gap in gaps), initial=0.0)  # seconds
    return [round(moment * 1e9) for moment in moments for _ in range(size)][:count]


def _gap(kind: ArrivalKind, rng: random.Random, burstiness: float) -> float:
    """Of any mean."""
    match kind:
        case "poisson" | "burst":
            return rng.expovariate(1.0)
        case "constant":
            return 1.0
        case "gamma":
            return rng.gammavariate(burstiness, 1.0)
