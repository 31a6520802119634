"""What each mode of `trivium bench` is asked to do, read from its flags before anything is started."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from trivium.bench import modes
from trivium.bench.experiment import Experiment
from trivium.bench.figures import Slo
from trivium.bench.record import Comparison, Mode, RunPlan, Side
from trivium.bench.settings import (
    ArrivalSettings,
    CompareSettings,
    LoadSettings,
    PrefixSettings,
    ReplaySettings,
    SearchSettings,
    SloSettings,
    TargetSettings,
    ThroughputSettings,
    WorkloadSettings,
)
from trivium.bench.target import Place, ReachedServer
from trivium.bench.trace import read_trace
from trivium.commands.options import UsageError, read_options

DEFAULT_CONCURRENCY = 8
KEY_VARIABLE = "TRIVIUM_API_KEY"  # a server that we start takes its key from there
HasWords = TypeVar("HasWords", WorkloadSettings, ReplaySettings)


class Job(Struct, frozen=True, kw_only=True):
    """What one command asks for."""

    mode: Mode
    places: list[Place]
    settings: list[Struct]  # all that is to be recorded
    measure: Callable[[Experiment, list[ReachedServer]], Awaitable[None]]
    slo: Slo | None = None
    comparison: Comparison | None = None


def job_of(args: argparse.Namespace) -> Job:
    return JOBS[args.mode](args)


def _serve(args: argparse.Namespace) -> Job:
    workload, arrival = _with_words(read_options(args, WorkloadSettings)), read_options(args, ArrivalSettings)
    slo = read_options(args, SloSettings)
    load = read_options(args, LoadSettings)
    loads = _loads(load)
    return Job(
        mode="serve",
        places=[_place(args)],
        settings=[workload, load, arrival, slo],
        measure=lambda experiment, servers: modes.serve(experiment, servers[0], workload, arrival, loads),
        slo=_slo(slo),
    )


def _throughput(args: argparse.Namespace) -> Job:
    workload, limit = _with_words(read_options(args, WorkloadSettings)), read_options(args, ThroughputSettings)
    return Job(
        mode="throughput",
        places=[_place(args)],
        settings=[workload, limit],
        measure=lambda experiment, servers: modes.throughput(experiment, servers[0], workload, limit.concurrency),
    )


def _latency(args: argparse.Namespace) -> Job:
    workload = _with_words(read_options(args, WorkloadSettings))
    return Job(
        mode="latency",
        places=[_place(args)],
        settings=[workload],
        measure=lambda experiment, servers: modes.latency(experiment, servers[0], workload),
    )


def _prefix(args: argparse.Namespace) -> Job:
    workload, arrival = _with_words(read_options(args, WorkloadSettings)), read_options(args, ArrivalSettings)
    prefix = read_options(args, PrefixSettings)
    load = read_options(args, LoadSettings)
    plan = _one_load(load)
    return Job(
        mode="prefix",
        places=[_place(args)],
        settings=[workload, load, arrival, prefix],
        measure=lambda experiment, servers: modes.prefix(experiment, servers[0], workload, arrival, plan, prefix),
    )


def _replay(args: argparse.Namespace) -> Job:
    settings, slo = _with_words(read_options(args, ReplaySettings)), read_options(args, SloSettings)
    trace = read_trace(Path(args.trace))
    return Job(
        mode="replay",
        places=[_place(args)],
        settings=[settings, slo],
        measure=lambda experiment, servers: modes.replay_trace(experiment, servers[0], trace, settings),
        slo=_slo(slo),
    )


def _search(args: argparse.Namespace) -> Job:
    workload, arrival = _with_words(read_options(args, WorkloadSettings)), read_options(args, ArrivalSettings)
    limits, search = read_options(args, SloSettings), read_options(args, SearchSettings)
    slo = _slo(limits)
    if slo is None:
        raise UsageError("a search needs a limit: --ttft-ms, --tpot-ms or --e2e-ms")
    return Job(
        mode="slo",
        places=[_place(args)],
        settings=[workload, arrival, limits, search],
        measure=lambda experiment, servers: modes.slo_search(experiment, servers[0], workload, arrival, slo, search),
        slo=slo,
    )


def _compare(args: argparse.Namespace) -> Job:
    workload, arrival = _with_words(read_options(args, WorkloadSettings)), read_options(args, ArrivalSettings)
    settings = read_options(args, CompareSettings)
    load = read_options(args, LoadSettings)
    plan = _one_load(load)

    async def measure(experiment: Experiment, servers: list[ReachedServer]) -> None:
        sides: dict[Side, ReachedServer] = {"a": servers[0], "b": servers[1]}
        await modes.compare(experiment, sides, workload, arrival, plan, settings)

    return Job(
        mode="compare",
        places=[
            _side(args.a, settings.a_model, settings.a_options, settings.api_key),
            _side(args.b, settings.b_model, settings.b_options, settings.api_key),
        ],
        settings=[workload, load, arrival, settings],
        measure=measure,
        comparison=Comparison(
            confidence=settings.confidence, min_effect=settings.min_effect, headline=settings.by, seed=workload.seed
        ),
    )


JOBS: dict[str, Callable[[argparse.Namespace], Job]] = {
    "serve": _serve,
    "throughput": _throughput,
    "latency": _latency,
    "prefix": _prefix,
    "replay": _replay,
    "slo": _search,
    "compare": _compare,
}


def _place(args: argparse.Namespace) -> Place:
    target = read_options(args, TargetSettings)
    if target.base_url is not None and (args.start_model or target.server_options):
        raise UsageError("--base-url names a server that runs: leave out the model to start and --server-options")
    return Place(
        base_url=target.base_url,
        start_model=args.start_model,
        server_options=target.server_options,
        model=target.model,
        api_key=target.api_key or (os.environ.get(KEY_VARIABLE) if target.base_url is None else None),
    )


def _side(where: str, model: str | None, options: str | None, api_key: str | None) -> Place:
    if where.startswith(("http://", "https://")):
        if options:
            raise UsageError(f"{where} is a server that runs: it takes no options")
        return Place(base_url=where, model=model, api_key=api_key)
    api_key = api_key or os.environ.get(KEY_VARIABLE)
    return Place(start_model=where, server_options=options, model=model, api_key=api_key)


def _with_words(settings: HasWords) -> HasWords:
    return settings if settings.words else msgspec.structs.replace(settings, words=secrets.token_hex(4))


def _loads(load: LoadSettings) -> list[RunPlan]:
    if load.rate is None:
        concurrency = load.concurrency or DEFAULT_CONCURRENCY
        return [RunPlan(label=f"{concurrency} at a time", loop="closed", concurrency=concurrency)]
    if load.concurrency is not None:
        raise UsageError("--rate is for an open loop and --concurrency for a closed one: give one of them")
    return [RunPlan(label=f"{rate:g}/s", loop="open", rate=rate) for rate in _rates(load.rate)]


def _one_load(load: LoadSettings) -> RunPlan:
    loads = _loads(load)
    if len(loads) > 1:
        raise UsageError(f"--rate {load.rate}: one rate is wanted here, not {len(loads)}")
    return loads[0]


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise UsageError(f"--rate {text!r}: not numbers above 0, separated by commas")
    return rates


def _slo(settings: SloSettings) -> Slo | None:
    slo = Slo(**msgspec.structs.asdict(settings))
    return slo if str(slo) else None
