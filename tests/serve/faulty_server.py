"""A server whose faults can be let loose, and that knows what it answers without them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_traffic
from fault_plan import FaultPlan
from fault_traffic import MIXED, NUM_STREAMS, Outcome
from server_process import PATIENCE, ServerProcess, wait_for
from tiny_model import MODEL

from trivium.faults import FaultPoint, Hits

# Points that one server with one model of its own does not reach, and where each is let loose.
ELSEWHERE = {
    "packed.read": "golden/models/test_packed_weights.py",
    "packed.write": "golden/models/test_packed_weights.py",
    "runner.encode": "golden/test_encoder_ladder.py",
    **dict.fromkeys(
        (
            "access.read_keys",
            "access.read_certificate",
            "access.reopen_log",
            "store.read_manifest",
            "store.write_manifest",
            "store.read_file",
            "store.write_file",
            "fleet.load",
            "fleet.evict",
            "fleet.watch",
            "fleet.let_go",
        ),
        "serve/test_fleet_faults.py",
    ),
}
DISK = ("records.", "blobs.", "access.log")
IN_ENGINE = ("stream", "chat", "samples", "scores", "form", "vector", "leaver", "response", "batch", "prefill")
# Points that MIXED traffic does not reach, and what does.
MORE = {"batches": ("batch",), "metrics.scrape": ("scrape",)}

MOMENT = 5.0  # seconds in which what goes on after the last answer meets a fault

_numbers = itertools.count()


class FaultyServer:
    def __init__(self, process: ServerProcess, plan: FaultPlan) -> None:
        self.process = process
        self.plan = plan
        kinds = (*MIXED, "batch", "scrape", "prefill")
        outcomes = self.send(kinds)
        assert [outcome.failure for outcome in outcomes] == [None] * len(outcomes)
        self._expected = {(place, outcome.kind): outcome.answer for place, outcome in enumerate(outcomes)}
        self._expected |= {("", outcome.kind): outcome.answer for outcome in outcomes}

    def send(self, kinds: tuple[str, ...]) -> list[Outcome]:
        return fault_traffic.send(self.process, next(_numbers), kinds)

    def send_until_fired(self, kinds: tuple[str, ...]) -> list[Outcome]:
        """The outcomes of the round in which a fault was met. A request may end before it is noticed that its client left:
        then there is nothing to end, and another round is needed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            outcomes = self.send(kinds)
            ends = time.monotonic() + MOMENT
            while not self.plan.fired() and time.monotonic() < ends:
                time.sleep(0.02)
            if self.plan.fired():
                return outcomes
            assert time.monotonic() < deadline, f"no fault within {PATIENCE:g} s"
            self.check(outcomes, Hits.NOBODY)

    def check(self, outcomes: list[Outcome], hits: Hits, num_faults: int = 1) -> None:
        """Who has an answer has the right one, and who has none may be without."""
        for place, outcome in enumerate(outcomes):
            if outcome.failure is None:
                key = place % NUM_STREAMS if outcome.kind == "stream" else ""
                assert outcome.answer == self._expected[(key, outcome.kind)], outcome.kind
        failed = [outcome for outcome in outcomes if outcome.failure is not None]
        told = [(outcome.kind, str(outcome.failure)) for outcome in failed]
        match hits:
            case Hits.NOBODY:
                assert not failed, told
            case Hits.RETRIED if num_faults <= 1:
                assert not failed, told
            case Hits.REQUEST:
                assert len(failed) <= num_faults, told
            case Hits.RETRIED | Hits.STEP | Hits.PROCESS:
                assert all(outcome.kind in IN_ENGINE for outcome in failed), told
        codes: set[str | None] = {"internal_error", "request_failed", "storage_failed"}
        if hits is Hits.PROCESS:
            codes = {"engine_dead", "engine_not_ready"}  # who came while it was being started again
        if num_faults > 1:
            codes.add(None)  # a stream that fails also while it tells of its failure is cut off
        for outcome in failed:
            assert outcome.failure is not None
            assert outcome.failure.code in codes, told

    def check_well(self) -> None:
        """As before: ready, idle, nothing held, and every answer right."""
        assert self.process.process.poll() is None
        wait_for(lambda: self.process.get("/health").status_code == 200 or None)
        self.process.wait_until_idle()


@contextmanager
def faulty_server(model: Path, directory: Path) -> Iterator[FaultyServer]:
    plan = FaultPlan(directory)
    options = ["--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-dtype", "float32"]
    options += ["--max-num-batched-tokens", "64", "--max-num-seqs", "16"]
    options += ["--tool-call-parser", "hermes", "--access-log", str(directory / "access.log")]
    process = ServerProcess(str(model), *options, environment=plan.environment)
    try:
        yield FaultyServer(process, plan)
    finally:
        code = process.stop()
    assert code == 0


def kinds_for(point: str) -> tuple[str, ...]:
    return (*MIXED, *next((more for prefix, more in MORE.items() if point.startswith(prefix)), ()))


def action_for(point: FaultPoint) -> str:
    if point.name == "runner.logits":
        return "nan"
    return "os_error" if point.name.startswith(DISK) else "raise"
