"""Runs loads one after the other, and keeps what is needed to tell of them."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.bench.client import PlannedRequest
from trivium.bench.load import closed_loop, open_loop
from trivium.bench.progress import Progress
from trivium.bench.record import RunPlan
from trivium.bench.samples import RequestSample
from trivium.bench.server_view import Metrics
from trivium.bench.target import ReachedServer


class Experiment:
    """The servers' metrics are taken right before a server's first run, so that they tell of what was measured alone."""

    def __init__(self) -> None:
        self.runs: list[RunPlan] = []
        self.samples: list[RequestSample] = []
        self.notes: list[str] = []
        self._metrics_before: dict[ReachedServer, str | None] = {}

    async def run(
        self, server: ReachedServer, plan: RunPlan, requests: Sequence[PlannedRequest]
    ) -> list[RequestSample]:
        if server not in self._metrics_before:
            self._metrics_before[server] = await server.metrics()
        number = len(self.runs)
        self.runs.append(plan)
        samples = await _load(server, plan, requests, number)
        self.samples += samples
        return samples

    async def metrics_of(self, server: ReachedServer) -> Metrics:
        """After its last run."""
        return Metrics(self._metrics_before.get(server), await server.metrics())

    async def warm_up(self, server: ReachedServer, requests: Sequence[PlannedRequest]) -> None:
        """Not measured: the first requests of a server may pay for what later ones find ready."""
        if requests:
            await _load(server, RunPlan(label="warm-up", loop="closed", concurrency=1), requests, 0)


async def _load(
    server: ReachedServer, plan: RunPlan, requests: Sequence[PlannedRequest], number: int
) -> list[RequestSample]:
    progress = Progress(plan.label, len(requests))
    try:
        if plan.loop == "open":
            return await open_loop(server.client, requests, number, progress)
        return await closed_loop(server.client, requests, number, plan.concurrency or len(requests), progress)
    finally:
        progress.close()
