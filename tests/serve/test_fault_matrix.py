"""Every fault in every state of the server, once and for five seconds. `make test-faults`"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_traffic import MIXED
from faulty_server import ELSEWHERE, FaultyServer, action_for, faulty_server, kinds_for

from trivium.faults import POINTS, FaultPoint, Hits

pytestmark = pytest.mark.faults

STATES = {"idle": (), "prefill": ("prefill",) * 3, "decode": ("stream",) * 4, "mixed": MIXED}
LONG_SECONDS = 5.0
IDLE_SECONDS = 0.6  # two looks at the engine, and its own figures once
SURVIVED = [point for point in POINTS if point.hits is not Hits.PROCESS and point.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def faulty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    with faulty_server(tiny_model, tmp_path_factory.mktemp("faults")) as server:
        yield server


@pytest.mark.parametrize("lasts", ["once", "long"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("point", SURVIVED, ids=[point.name for point in SURVIVED])
def test_a_fault_in_any_state_hits_at_most_whom_it_may(
    faulty: FaultyServer, point: FaultPoint, state: str, lasts: str
) -> None:
    kinds = kinds_for(point.name) if state == "mixed" else STATES[state]
    fault = {"point": point.name, "action": action_for(point)}
    faulty.plan.arm(fault if lasts == "once" else {**fault, "seconds": LONG_SECONDS})
    ends = time.monotonic() + (IDLE_SECONDS if lasts == "once" else LONG_SECONDS)
    outcomes = faulty.send(kinds)
    while time.monotonic() < ends:
        if kinds and lasts == "long":
            faulty.check(outcomes, point.hits, num_faults=len(faulty.plan.fired()))
            outcomes = faulty.send(kinds)
        else:
            time.sleep(0.05)
    num_faults = len(faulty.plan.fired())
    faulty.plan.disarm()
    faulty.check(outcomes, point.hits, num_faults=num_faults)
    faulty.check_well()
    faulty.check(faulty.send(MIXED), Hits.NOBODY)
