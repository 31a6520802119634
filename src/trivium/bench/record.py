"""What an experiment was: everything that is needed to read its samples, and to run it again."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from trivium.bench.figures import Slo

RECORD_VERSION = 1
REPORT_VERSION = 1  # changes with the page, so that a report is only held to what its own version would draw
Mode = Literal["serve", "throughput", "latency", "prefix", "replay", "slo", "compare"]
Side = Literal["a", "b"]
SIDES: tuple[Side, Side] = ("a", "b")
Headline = Literal["e2e", "ttft", "tpot", "throughput"]


class RunPlan(Struct, frozen=True, kw_only=True):
    """One load on one server. Its place in the record is its number in the samples."""

    label: str
    loop: Literal["open", "closed"]
    rate: float | None = None  # requests a second, of an open loop
    concurrency: int | None = None  # of a closed loop
    side: Side | None = None  # of a comparison
    round: int | None = None


class Target(Struct, frozen=True, kw_only=True):
    base_url: str
    model: str
    max_model_len: int | None  # where the server tells it
    started_with: list[str] | None  # the command, where this program started the server
    words_cost: tuple[float, float]  # tokens per word of a prompt, and of every prompt


class Comparison(Struct, frozen=True, kw_only=True):
    confidence: float
    min_effect: float
    headline: Headline
    seed: int


class Record(Struct, frozen=True, kw_only=True):
    version: int = RECORD_VERSION
    mode: Mode
    title: str
    command: list[str]  # without the key of an API
    settings: dict[str, Any]
    started_at: str  # UTC
    targets: list[Target]
    software: dict[str, str]
    machine: dict[str, str]
    notes: list[str]  # what was adjusted, and what could not be known
    runs: list[RunPlan]
    full_answers: bool  # every answer was asked to have its planned length
    slo: Slo | None = None
    comparison: Comparison | None = None
    report_version: int = REPORT_VERSION
    checker: str = "trivium bench verify BUNDLE; sha256sum -c SHA256SUMS"
