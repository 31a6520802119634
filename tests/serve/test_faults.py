"""Every place where something can go wrong, made to go wrong in a running server: only who was hit fails, with an error of
the right kind; everybody else has the answer to the bit that he has without it; and nothing is left behind."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import fault_traffic
import pytest
from fault_plan import FaultPlan
from fault_traffic import MIXED, Outcome
from server_process import ServerProcess, wait_for
from tiny_model import MODEL

import trivium.faults
from trivium.faults import POINTS, FaultPoint, Hits

DISK = ("records.", "blobs.", "access.log")
IN_ENGINE = ("stream", "chat", "samples", "scores", "form", "vector", "leaver", "response", "batch")
# Points that MIXED traffic does not reach, and what does.
MORE = {"batches": ("batch",), "metrics.scrape": ("scrape",)}
AT_START = (
    "packed.read",
    "packed.write",
)  # of models larger than the tests' own: tests/golden/models/test_packed_weights.py
PROCESS_CHAINS = (("core.plan", "client.spawn", "model.load"), ("core.commit",), ("loop.receive",))

_numbers = itertools.count()


class FaultyServer:
    def __init__(self, process: ServerProcess, plan: FaultPlan) -> None:
        self.process = process
        self.plan = plan
        kinds = (*MIXED, "batch", "scrape")
        outcomes = self.send(kinds)
        assert [outcome.failure for outcome in outcomes] == [None] * len(outcomes)
        self._expected = {(place, outcome.kind): outcome.answer for place, outcome in enumerate(outcomes)}
        self._expected |= {("", outcome.kind): outcome.answer for outcome in outcomes}

    def send(self, kinds: tuple[str, ...]) -> list[Outcome]:
        return fault_traffic.send(self.process, next(_numbers), kinds)

    def check(self, outcomes: list[Outcome], hits: Hits) -> None:
        """Who has an answer has the right one, and who has none may be without."""
        for place, outcome in enumerate(outcomes):
            if outcome.failure is None:
                key = place if outcome.kind == "stream" else ""
                assert outcome.answer == self._expected[(key, outcome.kind)], outcome.kind
        failed = [outcome for outcome in outcomes if outcome.failure is not None]
        told = [(outcome.kind, str(outcome.failure)) for outcome in failed]
        match hits:
            case Hits.NOBODY:
                assert not failed, told
            case Hits.REQUEST:
                assert len(failed) <= 1, told
            case Hits.STEP | Hits.PROCESS:
                assert all(outcome.kind in IN_ENGINE for outcome in failed), told
        codes = {"engine_dead"} if hits is Hits.PROCESS else {"internal_error", "request_failed", "storage_failed"}
        for outcome in failed:
            assert outcome.failure is not None
            assert outcome.failure.code in codes, told

    def check_well(self) -> None:
        """As before: ready, idle, nothing held, and every answer right."""
        assert self.process.process.poll() is None
        wait_for(lambda: self.process.get("/health").status_code == 200 or None, 60)
        self.process.wait_until_idle()


@pytest.fixture(scope="module")
def faulty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    directory = tmp_path_factory.mktemp("faults")
    plan = FaultPlan(directory)
    options = ["--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-dtype", "float32"]
    options += ["--max-num-batched-tokens", "64", "--max-num-seqs", "16"]
    options += ["--tool-call-parser", "hermes", "--access-log", str(directory / "access.log")]
    process = ServerProcess(str(tiny_model), *options, environment=plan.environment)
    yield FaultyServer(process, plan)
    assert process.stop() == 0


def kinds_for(point: str) -> tuple[str, ...]:
    return (*MIXED, *next((more for prefix, more in MORE.items() if point.startswith(prefix)), ()))


def action_for(point: FaultPoint) -> str:
    if point.name == "runner.logits":
        return "nan"
    return "os_error" if point.name.startswith(DISK) else "raise"


SURVIVED = [point for point in POINTS if point.hits is not Hits.PROCESS and point.name not in AT_START]


@pytest.mark.parametrize("point", SURVIVED, ids=[point.name for point in SURVIVED])
def test_a_fault_hits_at_most_whom_it_may(faulty: FaultyServer, point: FaultPoint) -> None:
    faulty.plan.arm({"point": point.name, "action": action_for(point)})
    outcomes = faulty.send(kinds_for(point.name))
    wait_for(lambda: faulty.plan.fired() or None, 10)
    assert faulty.plan.fired() == [point.name], "once, and there"
    faulty.plan.disarm()
    faulty.check(outcomes, point.hits)
    faulty.check_well()


@pytest.mark.parametrize("chain", PROCESS_CHAINS, ids="-".join)
def test_an_engine_that_fails_for_good_is_started_again(faulty: FaultyServer, chain: tuple[str, ...]) -> None:
    faulty.plan.arm(*({"point": name} for name in chain))
    outcomes = faulty.send(MIXED)
    wait_for(lambda: sorted(faulty.plan.fired()) == sorted(chain) or None, 60)
    faulty.plan.disarm()
    faulty.check(outcomes, Hits.PROCESS)
    faulty.check_well()
    faulty.check(faulty.send(MIXED), Hits.NOBODY)


def test_every_point_is_tested_and_stands_in_the_code_once() -> None:
    tested = [*(point.name for point in SURVIVED), *AT_START, *(name for chain in PROCESS_CHAINS for name in chain)]
    assert sorted(tested) == sorted(point.name for point in POINTS) and len(tested) >= 60
    root = Path(trivium.faults.__file__).parent
    planted = [name for path in root.rglob("*.py") for name in re.findall(r'fault_point\("(.+?)"', path.read_text())]
    planted.remove("text.tokenize")  # the example in the module's own description
    assert sorted(planted) == sorted(tested)
