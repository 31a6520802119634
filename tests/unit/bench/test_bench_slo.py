"""The search for the highest good rate, against servers whose limit is known."""

from __future__ import annotations

import asyncio

import pytest

from trivium.bench.settings import SearchSettings
from trivium.bench.slo import search_rate


def found(limit: float, **settings: float) -> tuple[float | None, list[float]]:
    tried: list[float] = []

    async def keeps(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    return asyncio.run(search_rate(keeps, SearchSettings(**settings))), tried  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.3, 300.0])
def test_the_limit_is_found_to_the_precision(limit: float) -> None:
    rate, tried = found(limit, precision=0.02)
    assert rate is not None and limit / 1.02 <= rate <= limit
    assert len(tried) < 18
    assert len({*tried}) == len(tried)


def test_no_rate_above_the_highest_is_tried() -> None:
    rate, tried = found(1e9, max_rate=10.0)
    assert rate == 10.0 and max(tried) == 10.0


def test_a_server_that_keeps_nothing_ends_the_search() -> None:
    rate, tried = found(0.0, max_runs=5)
    assert rate is None and len(tried) == 5
