"""`trivium bench`: measures a server, prints a table, leaves a report and the evidence for it; checks such evidence."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trivium.bench.bundle import REPORT, Evidence, require_new, suffixes, write_bundle
from trivium.bench.experiment import Experiment
from trivium.bench.machine import machine, software
from trivium.bench.record import Record
from trivium.bench.redact import without_keys
from trivium.bench.report_html import report_page
from trivium.bench.results import Results, results_of
from trivium.bench.settings import AnswerOptions, OutputSettings
from trivium.bench.table import result_lines
from trivium.bench.target import reach
from trivium.bench.verify import problems_of
from trivium.commands.bench_jobs import Job, job_of
from trivium.commands.open_files import raise_open_files_limit
from trivium.commands.options import read_options


def run(args: argparse.Namespace) -> int:
    if args.mode == "verify":
        return _verify(Path(args.bundle), args.digest)
    job = job_of(args)
    answers = read_options(args, AnswerOptions)
    output = read_options(args, OutputSettings)
    raise_open_files_limit()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            results = runner.run(_ended_by_sigterm(_bench(job, answers, output)))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
    return 0 if any(figures.completed for figures in results.runs) else 1


async def _ended_by_sigterm(work: Coroutine[Any, Any, Results]) -> Results:
    """As by Ctrl-C, also where that is ignored, as in a shell's background: servers that we started are stopped on the way out."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


async def _bench(job: Job, answers: AnswerOptions, output: OutputSettings) -> Results:
    started = datetime.now(UTC)
    folder = Path(output.output or f"trivium-bench/{job.mode}-{started:%Y%m%d-%H%M%S}")
    require_new(folder)
    facts = machine()
    experiment = Experiment()
    async with AsyncExitStack() as stack:
        servers = []
        for place in job.places:
            _say(f"{job.mode}: {place}")
            servers.append(await stack.enter_async_context(reach(place, answers)))
        await job.measure(experiment, servers)
        metrics = [await experiment.metrics_of(server) for server in servers]
        logs = [server.log for server in servers]
    record = Record(
        mode=job.mode,
        title=output.title or f"{job.mode}: {', '.join(dict.fromkeys(s.target.model for s in servers))}",
        command=["trivium", *without_keys(sys.argv[1:])],
        settings=_shown_settings([*job.settings, answers]),
        started_at=started.isoformat(timespec="seconds"),
        targets=[server.target for server in servers],
        software=software(),
        machine=facts,
        notes=[note for server in servers for note in server.notes] + experiment.notes,
        runs=experiment.runs,
        full_answers=answers.ignore_eos,
        slo=job.slo,
        comparison=job.comparison,
    )
    results = results_of(record, experiment.samples, metrics)
    page = report_page(record, experiment.samples, results)
    texts = {
        f"server{suffix}.log": "\n".join([*log, ""])
        for suffix, log in zip(suffixes(record), logs, strict=True)
        if log is not None
    }
    digest = write_bundle(folder, Evidence(record, experiment.samples, results, metrics), page, texts)
    for line in result_lines(record, results):
        print(line)
    _say(f"report {folder / REPORT}; to check it: trivium bench verify {folder} --digest {digest}")
    return results


def _shown_settings(structs: Sequence[Struct]) -> dict[str, Any]:
    return {
        name: value
        for struct in structs
        for name, value in msgspec.structs.asdict(struct).items()
        if name not in ("api_key", "a_options", "b_options")  # the command and the targets tell them, without keys
    }


def _verify(folder: Path, digest: str | None) -> int:
    problems = list(problems_of(folder, digest))
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{folder}: every file is as it was written, and every figure follows from the samples")
    return 1 if problems else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
