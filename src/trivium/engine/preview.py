"""What would happen if the engine were started now, asked of a process of its own: a crash is an answer too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
from msgspec import Struct

from trivium.config.options import EngineOptions
from trivium.platform.contract import DeviceFacts, ImportedFacts, KernelFacts, RunningFacts, StaticFacts
from trivium.types.report import Refusal, Report

SECONDS = 120.0  # a large model's headers from a slow disk


class PreviewRequest(Struct, frozen=True):
    options: EngineOptions
    has_model: bool = True  # else only the machine is looked at
    context: int | None = None  # tokens of the request for which room is told


class PlatformFacts(Struct, frozen=True, kw_only=True):
    """The chosen platform's answers to the contract."""

    static: StaticFacts
    imported: ImportedFacts
    device: DeviceFacts | None  # None: the probe gave no answer; a check says why
    kernels: KernelFacts
    running: RunningFacts


class Preview(Struct, frozen=True):
    report: Report
    facts: PlatformFacts | None = None


def preview(request: PreviewRequest, seconds: float = SECONDS) -> Preview:
    """This process imports no torch for it."""
    command = [sys.executable, "-m", "trivium.engine.examine"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(request),
            stdout=subprocess.PIPE,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(f"gave no answer within {seconds:g} s")
    if done.returncode < 0:
        return _failed(f"was killed by {signal.Signals(-done.returncode).name}")
    try:
        return msgspec.json.decode(done.stdout, type=Preview)
    except msgspec.DecodeError:
        return _failed(f"ended with exit code {done.returncode} and no answer")


def _failed(what: str) -> Preview:
    return Preview(Report(refusal=Refusal("EngineDeadError", f"planning the start {what}")))
