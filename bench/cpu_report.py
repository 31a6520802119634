"""What was measured, as tables of ratios with their spread, and as a file that holds every sample."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cpu_workloads import Workload

OURS = "trivium"


@dataclass(frozen=True)
class Sample:
    model: str
    workload: str
    engine: str
    repeat: int
    value: float  # in the workload's unit
    others: float  # share of the machine that was busy with something else meanwhile
    memory: float | None = None  # bytes a second that a plain loop read before and after, where that was asked for


@dataclass
class Evidence:
    command: list[str]
    began: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    machine: dict[str, Any] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)  # what each says about itself
    first_words: dict[str, list[int]] = field(
        default_factory=dict
    )  # what each says to one prompt: is it the same model?
    absent: dict[str, str] = field(default_factory=dict)  # peers that were not measured, and why
    samples: list[Sample] = field(default_factory=list)

    def values(self, model: str, workload: Workload, engine: str) -> dict[int, float]:
        """By repeat."""
        return {sample.repeat: sample.value for sample in self.of(model, workload, engine)}

    def of(self, model: str, workload: Workload, engine: str) -> list[Sample]:
        wanted = model, workload.name, engine
        return [sample for sample in self.samples if (sample.model, sample.workload, sample.engine) == wanted]

    def median(self, model: str, workload: Workload, engine: str) -> float | None:
        values = self.values(model, workload, engine)
        return statistics.median(values.values()) if values else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))


def describe_machine() -> dict[str, Any]:
    info = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines() if ":" in line
    )
    facts = {key.strip(): value.strip() for key, value in info.items()}
    wanted = ("avx", "amx", "fma", "f16c", "bmi")
    return {
        "processor": facts.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "cache": facts.get("cache size"),
        "flags": [flag for flag in facts.get("flags", "").split() if flag.startswith(wanted)],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def table(evidence: Evidence, model: str, workloads: list[Workload], engines: list[str]) -> str:
    """Medians, and ours against the best peer: the ratio of medians' peers, repeat by repeat."""
    peers = [engine for engine in engines if engine != OURS]
    lines = [
        f"| {model} | " + " | ".join(engines) + " | ours / best peer (min to max) | must | |",
        "|---|" + "---|" * (len(engines) + 3),
    ]
    for workload in workloads:
        medians = {engine: evidence.median(model, workload, engine) for engine in engines}
        cells = ["–" if value is None else shown(value) for value in medians.values()]
        lines.append(
            f"| {workload.name}, {workload.unit} | {' | '.join(cells)} | {_verdict(evidence, model, workload, peers)} |"
        )
    return "\n".join(lines)


def ratios(evidence: Evidence, model: str, workload: Workload, peers: list[str]) -> tuple[str, list[float]] | None:
    """(the peer whose median is the best, ours against it in each repeat)."""
    medians = {peer: median for peer in peers if (median := evidence.median(model, workload, peer)) is not None}
    ours = evidence.values(model, workload, OURS)
    if not medians or not ours:
        return None
    best = (max if workload.higher_is_better else min)(medians, key=lambda peer: medians[peer])
    theirs = evidence.values(model, workload, best)
    return best, [workload.ratio(value, theirs[repeat]) for repeat, value in ours.items() if repeat in theirs]


def _verdict(evidence: Evidence, model: str, workload: Workload, peers: list[str]) -> str:
    found = ratios(evidence, model, workload, peers)
    cell = "–"
    holds: bool | None = None
    if found is not None and found[1]:
        best, each = found
        middle = statistics.median(each)
        cell = f"{middle:.2f} ({min(each):.2f} to {max(each):.2f}, {best})"
        if workload.must.times is not None:
            holds = middle >= workload.must.times
    ours = evidence.median(model, workload, OURS)
    if workload.must.at_most is not None and ours is not None:
        holds = ours <= workload.must.at_most
    must = f"{workload.must.times} x" if workload.must.times else f"at most {workload.must.at_most:g} {workload.unit}"
    return f"{cell} | {must} | {'' if holds is None else 'holds' if holds else 'missed'}"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def calm(evidence: Evidence) -> str:
    shares = [sample.others for sample in evidence.samples]
    return f"others took {statistics.median(shares):.0%} of the machine (median of samples; worst {max(shares):.0%})"
