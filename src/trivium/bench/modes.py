"""What each kind of experiment runs, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trivium.bench.client import PlannedRequest
from trivium.bench.errors import BenchError
from trivium.bench.experiment import Experiment
from trivium.bench.figures import Slo
from trivium.bench.record import RunPlan, Side
from trivium.bench.settings import (
    ArrivalSettings,
    CompareSettings,
    PrefixSettings,
    ReplaySettings,
    SearchSettings,
    WorkloadSettings,
)
from trivium.bench.slo import search_rate
from trivium.bench.target import ReachedServer
from trivium.bench.trace import TracedRequest
from trivium.bench.workload import replay, schedule, sharing, synthetic


async def serve(
    experiment: Experiment,
    server: ReachedServer,
    workload: WorkloadSettings,
    arrival: ArrivalSettings,
    loads: Sequence[RunPlan],
) -> None:
    """One run for each load."""
    await _warm_up(experiment, server, workload)
    for number, plan in enumerate(loads):
        requests = synthetic(workload, f"run {number}", server.cost)
        await experiment.run(server, plan, _scheduled(requests, plan, arrival, str(workload.seed)))


async def throughput(
    experiment: Experiment, server: ReachedServer, workload: WorkloadSettings, concurrency: int | None
) -> None:
    """All requests at once, or so many at a time; over HTTP like everything else."""
    await _warm_up(experiment, server, workload)
    plan = RunPlan(label="throughput", loop="closed", concurrency=concurrency or workload.requests)
    await experiment.run(server, plan, synthetic(workload, plan.label, server.cost))


async def latency(experiment: Experiment, server: ReachedServer, workload: WorkloadSettings) -> None:
    """One request at a time."""
    await _warm_up(experiment, server, workload)
    plan = RunPlan(label="latency", loop="closed", concurrency=1)
    await experiment.run(server, plan, synthetic(workload, plan.label, server.cost))


async def prefix(
    experiment: Experiment,
    server: ReachedServer,
    workload: WorkloadSettings,
    arrival: ArrivalSettings,
    load: RunPlan,
    settings: PrefixSettings,
) -> None:
    """The same load twice: prompts as long that share nothing, then prompts that share their beginnings."""
    await _warm_up(experiment, server, workload)
    for label, shared in (("nothing shared", False), ("prefixes shared", True)):
        plan = msgspec.structs.replace(load, label=label)
        requests = sharing(workload, settings, label, server.cost, shared=shared)
        await experiment.run(server, plan, _scheduled(requests, plan, arrival, str(workload.seed)))


async def replay_trace(
    experiment: Experiment, server: ReachedServer, trace: Sequence[TracedRequest], settings: ReplaySettings
) -> None:
    made = replay(trace, settings, server.target.max_model_len, server.cost)
    if not made.plan:
        raise BenchError(
            f"the trace has no request at or after {settings.start:g} s; its last is at {trace[-1].at:g} s"
        )
    experiment.notes += made.notes
    await _warm_up(experiment, server, WorkloadSettings(warmup=settings.warmup, words=settings.words))
    span = made.plan[-1].at_ns / 1e9
    rate = (len(made.plan) - 1) / span if span else None
    await experiment.run(server, RunPlan(label="replay", loop="open", rate=rate), made.plan)


async def slo_search(
    experiment: Experiment,
    server: ReachedServer,
    workload: WorkloadSettings,
    arrival: ArrivalSettings,
    slo: Slo,
    search: SearchSettings,
) -> None:
    """One run for each rate that is tried."""
    await _warm_up(experiment, server, workload)

    async def keeps(rate: float) -> bool:
        plan = RunPlan(label=f"{rate:.4g}/s", loop="open", rate=rate)
        requests = synthetic(workload, f"{len(experiment.runs)}", server.cost)
        samples = await experiment.run(server, plan, schedule(requests, rate, arrival, str(workload.seed)))
        return sum(map(slo.met_by, samples)) / len(samples) >= slo.attain

    await search_rate(keeps, search)


async def compare(
    experiment: Experiment,
    sides: dict[Side, ReachedServer],
    workload: WorkloadSettings,
    arrival: ArrivalSettings,
    load: RunPlan,
    settings: CompareSettings,
) -> None:
    """Both sides in every round, A first and B first in turns. Lengths and arrivals are the same for both; the words are
    not, so that two names of one server do not find each other's prompts in the cache."""
    for server in sides.values():
        await _warm_up(experiment, server, workload)
    orders: tuple[tuple[Side, Side], ...] = (("a", "b"), ("b", "a"))
    for number in range(settings.rounds):
        for side in orders[number % 2]:
            label = f"round {number + 1} {side.upper()}"
            plan = msgspec.structs.replace(load, label=label, side=side, round=number)
            requests = synthetic(workload, label, sides[side].cost, shape=f"round {number}")
            seed = f"{workload.seed}/round {number}"
            await experiment.run(sides[side], plan, _scheduled(requests, plan, arrival, seed))


async def _warm_up(experiment: Experiment, server: ReachedServer, workload: WorkloadSettings) -> None:
    few = msgspec.structs.replace(workload, requests=max(1, workload.warmup))
    requests = synthetic(few, "warm-up", server.cost)[: workload.warmup]
    await experiment.warm_up(server, requests)


def _scheduled(
    requests: list[PlannedRequest], plan: RunPlan, arrival: ArrivalSettings, seed: str
) -> list[PlannedRequest]:
    return requests if plan.rate is None else schedule(requests, plan.rate, arrival, seed)
