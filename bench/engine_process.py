"""An engine in a process of its own, called line by line (`peers/protocol.py`), and stopped while others have their turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# wall: seconds that go by. cpu: seconds that processors worked for the engine; with one thread a measure of its work
# that other processes disturb little.
Clock = Literal["wall", "cpu"]

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class EngineError(Exception):
    """The engine's process ended, or gave other tokens than were asked for."""


@dataclass(frozen=True)
class EngineCommand:
    name: str
    python: Path
    script: Path
    model: Path
    threads: int
    clock: Clock = "wall"
    settings: tuple[str, ...] = ()
    skips: str = ""  # letters of workloads
    preload: Path | None = None  # a library that its process loads before its own

    def argv(self) -> list[str]:
        settings = [word for setting in self.settings for word in ("--setting", setting)]
        model = ["--model", str(self.model), "--threads", str(self.threads)]
        return [str(self.python), str(self.script), *model, *settings]

    def environment(self) -> dict[str, str]:
        """This process's; but what was put on our path is not for engines that have a Python of their own."""
        own = {} if self.python == Path(sys.executable) else {"PYTHONPATH": ""}
        preload = {"LD_PRELOAD": str(self.preload)} if self.preload else {}
        return {**os.environ, **own, **preload, "OMP_NUM_THREADS": str(self.threads)}


class EngineProcess:
    def __init__(self, command: EngineCommand, log: Path) -> None:
        self.name = command.name
        self.skips = command.skips
        self.has_failed = False
        self._log = log
        self._clock = command.clock
        self._began = time.perf_counter()
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command.argv(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=command.environment(),
            )
        self.about = self._read()

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int = 0) -> tuple[float, list[list[int]]]:
        """(seconds, the new tokens of each prompt)."""
        worked = self.cpu_seconds()
        call = {"prompts": prompts, "new_tokens": new_tokens, "shared": shared}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        lengths = [len(tokens) for tokens in answer["tokens"]]
        if lengths != [new_tokens] * len(prompts):
            self.has_failed = True
            raise EngineError(f"{self.name}: {new_tokens} tokens for each of {len(prompts)} prompts, but got {lengths}")
        return answer["seconds"] if self._clock == "wall" else self.cpu_seconds() - worked, answer["tokens"]

    def seconds_alive(self) -> float:
        return time.perf_counter() - self._began if self._clock == "wall" else self.cpu_seconds()

    def peak_bytes(self) -> int:
        """Most resident memory, of each process at its own time, summed: no less than their most at one time."""
        return sum(_peak_bytes(pid) for pid in self._tree())

    def cpu_seconds(self) -> float:
        return sum(_cpu_seconds(pid) for pid in self._tree())

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self.resume()
        assert self._process.stdin is not None
        family = self._tree()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in family[1:]:
            _send(pid, signal.SIGKILL)  # what it left behind

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.has_failed = True
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
            raise EngineError(f"{self.name}: its process ended; the end of {self._log}:\n{end}")
        return json.loads(line)

    def _signal(self, number: int) -> None:
        for pid in self._tree():
            _send(pid, number)

    def _tree(self) -> list[int]:
        """The process and its living descendants, parents before children."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))):
                children.setdefault(int(fields[1]), []).append(int(entry.name))
        found = [self._process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found


def _stat(pid: int) -> list[str]:
    """Of /proc/<pid>/stat the fields after the name, from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _peak_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peaks[0]) * 1024 if peaks else 0


def _cpu_seconds(pid: int) -> float:
    """Of all threads that live."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(task.read_text().split()[0])
    return total / 1e9


class MachineClock:
    """How much of the machine's processor time others than one engine took since it was made."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._start = self._read()

    def share_of_others(self) -> float:
        total, busy, ours = (now - then for now, then in zip(self._read(), self._start, strict=True))
        return max(0.0, busy - ours) / max(total, 1e-9)

    def _read(self) -> tuple[float, float, float]:
        """(all, not idle, the engine's), seconds; the hypervisor's part counts as others'."""
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return sum(ticks) / CLOCK_TICKS, (sum(ticks) - idle) / CLOCK_TICKS, self._engine.cpu_seconds()
