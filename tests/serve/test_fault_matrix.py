"""Every fault in every state of the server, once and for five seconds. `make test-faults`; the points that one server with one
model does not reach have their own tests (faulty_server.ELSEWHERE)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_traffic import MIXED
from faulty_server import ELSEWHERE, FaultyServer, action_for, faulty_server, kinds_for
from fleet_server import FleetServer
from server_process import wait_for

from trivium.faults import POINTS, FaultPoint, Hits

pytestmark = pytest.mark.faults

STATES = {"idle": (), "prefill": ("prefill",) * 3, "decode": ("stream",) * 4, "mixed": MIXED}
LONG_SECONDS = 5.0
IDLE_SECONDS = 0.6  # two looks at the engine, and its own figures once
SURVIVED = [point for point in POINTS if point.hits is not Hits.PROCESS and point.name not in ELSEWHERE]

ENDING = [point for point in POINTS if point.hits is Hits.PROCESS]
OF_FLEETS = [point for point in POINTS if ELSEWHERE.get(point.name) == "serve/test_fleet_faults.py"]
AT_A_START = ("client.spawn", "model.load")  # reached when an engine that was killed is started again


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
    let_loose(faulty, point, kinds, lasts)


@pytest.mark.parametrize("lasts", ["once", "long"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("point", ENDING, ids=[point.name for point in ENDING])
def test_an_engine_that_fails_in_any_state_is_started_again(
    tiny_model: Path, tmp_path: Path, point: FaultPoint, state: str, lasts: str
) -> None:
    """Each on a server of its own: one whose engine dies too often in a minute is given up."""
    with faulty_server(tiny_model, tmp_path) as server:
        let_loose(server, point, STATES[state], lasts, kills=point.name in AT_A_START)


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetServer]:
    fleet = FleetServer(tiny_model, tmp_path_factory.mktemp("fleet"))
    yield fleet
    assert fleet.process.stop() == 0


@pytest.mark.parametrize("action", ["raise", "os_error"])
@pytest.mark.parametrize("point", OF_FLEETS, ids=[point.name for point in OF_FLEETS])
def test_a_fault_that_lasts_where_models_come_and_go_does_not_reach_the_one_that_stays(
    fleet: FleetServer, point: FaultPoint, action: str
) -> None:
    fleet.plan.arm({"point": point.name, "action": action, "seconds": LONG_SECONDS})
    ends = time.monotonic() + LONG_SECONDS
    while time.monotonic() < ends:
        fleet.hang_up("read again")
        for name in ("ant", "bee"):
            answer = fleet.ask(name)
            if answer.status_code == 200:
                assert answer.json()["choices"] == fleet.right
            else:
                assert answer.json()["error"]["code"] in ("internal_error", "model_load_failed", "no_room_for_model")
        fleet.check_well()
    fleet.plan.disarm()
    for name in ("ant", "bee"):
        assert fleet.ask(name).json()["choices"] == fleet.right
    fleet.check_alone()


def let_loose(faulty: FaultyServer, point: FaultPoint, kinds: tuple[str, ...], lasts: str, kills: bool = False) -> None:
    """`kills`: the engine is killed first."""
    fault = {"point": point.name, "action": action_for(point)}
    faulty.plan.arm(fault if lasts == "once" else {**fault, "seconds": LONG_SECONDS})
    if kills:
        os.kill(faulty.process.engine_pid, signal.SIGKILL)
    ends = time.monotonic() + (IDLE_SECONDS if lasts == "once" else LONG_SECONDS)
    outcomes = faulty.send(kinds)
    while time.monotonic() < ends:
        if kinds and lasts == "long":
            faulty.check(outcomes, point.hits, num_faults=len(faulty.plan.fired()))
            outcomes = faulty.send(kinds)
        else:
            time.sleep(0.05)
    if kills and lasts == "once":
        wait_for(lambda: faulty.plan.fired() or None)
    num_faults = len(faulty.plan.fired())
    faulty.plan.disarm()
    if kills or (point.hits is Hits.PROCESS and num_faults):  # the server may not know of it yet
        wait_for(lambda: faulty.process.metrics()["trivium_engine_restarts_total"] or None)
    faulty.check(outcomes, point.hits, num_faults=num_faults)
    faulty.check_well()
    faulty.check(faulty.send(MIXED), Hits.NOBODY)
