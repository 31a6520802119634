"""The highest rate at which a server keeps its promises: doubled until it does not, then halved between."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from trivium.bench.settings import SearchSettings


async def search_rate(keeps: Callable[[float], Awaitable[bool]], settings: SearchSettings) -> float | None:
    """`keeps(rate)` makes a run and says whether the SLO was kept. None: not even the lowest rate tried was good."""
    good: float | None = None
    bad = math.inf
    rate = min(settings.start_rate, settings.max_rate)
    for _ in range(settings.max_runs):
        if await keeps(rate):
            good = rate
        else:
            bad = rate
        if good == settings.max_rate or (good is not None and bad <= good * (1 + settings.precision)):
            break
        rate = next_rate(good, bad, settings.max_rate)
    return good


def next_rate(good: float | None, bad: float, max_rate: float) -> float:
    """Geometric steps: rates are told apart by their ratio."""
    if good is None:
        return bad / 2
    if math.isinf(bad):
        return min(good * 2, max_rate)
    return math.sqrt(good * bad)
