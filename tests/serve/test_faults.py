"""Every place where something can go wrong, made to go wrong in a running server: only who was hit fails, with an error of
the right kind; everybody else has the answer to the bit that he has without it; and nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_traffic import MIXED
from faulty_server import ELSEWHERE, FaultyServer, action_for, faulty_server, kinds_for
from server_process import wait_for

import trivium.faults
from trivium.faults import POINTS, FaultPoint, Hits

PROCESS_CHAINS = (("core.plan", "client.spawn", "model.load"), ("core.commit",), ("loop.receive",))


@pytest.fixture(scope="module")
def faulty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    with faulty_server(tiny_model, tmp_path_factory.mktemp("faults")) as server:
        yield server


SURVIVED = [point for point in POINTS if point.hits is not Hits.PROCESS and point.name not in ELSEWHERE]


@pytest.mark.parametrize("point", SURVIVED, ids=[point.name for point in SURVIVED])
def test_a_fault_hits_at_most_whom_it_may(faulty: FaultyServer, point: FaultPoint) -> None:
    faulty.plan.arm({"point": point.name, "action": action_for(point)})
    outcomes = faulty.send_until_fired(kinds_for(point.name))
    assert faulty.plan.fired() == [point.name], "once, and there"
    faulty.plan.disarm()
    faulty.check(outcomes, point.hits)
    faulty.check_well()


@pytest.mark.parametrize("chain", PROCESS_CHAINS, ids="-".join)
def test_an_engine_that_fails_for_good_is_started_again(faulty: FaultyServer, chain: tuple[str, ...]) -> None:
    faulty.check_well()
    faulty.plan.arm(*({"point": name} for name in chain))
    outcomes = faulty.send(MIXED)
    wait_for(lambda: sorted(faulty.plan.fired()) == sorted(chain) or None)
    faulty.plan.disarm()
    faulty.check(outcomes, Hits.PROCESS)
    faulty.check_well()
    faulty.check(faulty.send(MIXED), Hits.NOBODY)


def test_every_point_is_tested_and_stands_in_the_code_once() -> None:
    tested = [*(point.name for point in SURVIVED), *ELSEWHERE, *(name for chain in PROCESS_CHAINS for name in chain)]
    assert sorted(tested) == sorted(point.name for point in POINTS) and len(tested) >= 60
    root = Path(trivium.faults.__file__).parent
    planted = [name for path in root.rglob("*.py") for name in re.findall(r'fault_point\("(.+?)"', path.read_text())]
    planted.remove("text.tokenize")  # the example in the module's own description
    assert sorted(planted) == sorted(tested)
