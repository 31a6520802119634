"""Checks of the machine: what its kernel, its clocks and its other processes cost the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trivium.platform.host_memory import memory_info
from trivium.types.checks import Check

MIB = 1 << 20
ROOT = Path("/")
MUCH_SWAPPED = 0.25  # of the swap space: more than what lies there because nobody ever asks for it
EARLIEST_CLOCK = 1_735_689_600.0  # seconds; 2025-01-01, before which no release was made
LARGEST_STEP_SECONDS = 0.5  # by which a clock that is set right may move while it is watched
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "pit")  # a reading costs a microsecond and more
ENGINE_MODULE = b"trivium.engine.process"
HERE = Path(__file__)


def check_swap(root: Path = ROOT) -> Check:
    info = memory_info(root)
    total = info.get("SwapTotal", 0)
    used = total - info.get("SwapFree", 0)
    swaps = used > MUCH_SWAPPED * total
    shown = f"{used // MIB} of {total // MIB} MiB in use" if total else "none"
    remedy = "end what holds the memory: weights and keys that are swapped out cost seconds a token" if swaps else ""
    return Check("swap", "warn" if swaps else "ok", shown, f"<= {MUCH_SWAPPED:.0%} in use", remedy)


def check_overcommit(root: Path = ROOT) -> Check:
    """The KV cache is asked for whole and filled as it is needed."""
    file = root / "proc/sys/vm/overcommit_memory"
    mode = file.read_text().strip() if file.exists() else "0"
    never = mode == "2"
    shown = "never: what is asked for must be there" if never else "what is asked for comes as it is used"
    remedy = "sysctl vm.overcommit_memory=0, or a small --kv-cache-bytes" if never else ""
    return Check("overcommit", "warn" if never else "ok", shown, "vm.overcommit_memory 0 or 1", remedy)


def check_huge_pages(root: Path = ROOT) -> Check:
    """Weights and the KV cache are read in long runs, which large pages make cheaper."""
    file = root / "sys/kernel/mm/transparent_hugepage/enabled"
    wanted = "madvise or always"
    if not file.exists():
        return Check("huge-pages", "ok", "not offered by this kernel", wanted, "")
    chosen = file.read_text().partition("[")[2].partition("]")[0]
    off = chosen == "never"
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" if off else ""
    return Check("huge-pages", "warn" if off else "ok", chosen, wanted, remedy)


def check_cpu_governor(root: Path = ROOT) -> Check:
    """Drivers that choose the frequency in hardware call their ordinary mode "powersave"; theirs is told by a preference."""
    slow: set[str] = set()
    seen: set[str] = set()
    for processor in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"):
        governor, driver = _line(processor / "scaling_governor"), _line(processor / "scaling_driver")
        preference = _line(processor / "energy_performance_preference")
        is_in_hardware = driver.startswith(("intel_pstate", "amd-pstate"))
        seen.add(governor)
        if preference == "power" or (governor == "powersave" and not is_in_hardware):
            slow.add(preference if preference == "power" else governor)
    shown = ", ".join(sorted(slow or seen)) or "not told by this machine"
    remedy = "cpupower frequency-set -g performance" if slow else ""
    return Check("cpu-governor", "warn" if slow else "ok", shown, "performance, or on demand", remedy)


def check_clock(installed: Path = HERE, now: float | None = None) -> Check:
    """Nothing was installed in the future. `installed`: any file of ours."""
    now = time.time() if now is None else now
    earliest = max(EARLIEST_CLOCK, installed.stat().st_mtime)
    right = now >= earliest
    remedy = "" if right else "set the clock (timedatectl set-ntp true): certificates and expiry times are wrong"
    wanted = f"{_day(earliest)} or later, since this was installed then"
    return Check("clock", "ok" if right else "warn", _day(now), wanted, remedy)


def check_clock_source(root: Path = ROOT) -> Check:
    """The engine reads the clock many times a step."""
    source = _line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    slow = source in SLOW_CLOCKS
    remedy = "see why the kernel left the TSC: dmesg | grep -i clocksource" if slow else ""
    return Check(
        "clock-source", "warn" if slow else "ok", source or "not told", "one that is read in nanoseconds", remedy
    )


class ClockWatch:
    """The wall clock beside one that is never set: what parts them by more than a slewing is a jump."""

    def __init__(self) -> None:
        self._began = _wall_ahead()

    def check_clock_steady(self) -> Check:
        moved = _wall_ahead() - self._began
        jumped = abs(moved) > LARGEST_STEP_SECONDS
        remedy = "let one service set the clock, in small steps: chronyd or systemd-timesyncd" if jumped else ""
        wanted = f"within {LARGEST_STEP_SECONDS:g} s while it was looked at"
        return Check("clock-steady", "warn" if jumped else "ok", f"moved by {moved:+.3f} s", wanted, remedy)


def check_leftover_engines(root: Path = ROOT) -> Check:
    """Engines end with the process that started them; one that init had to take in holds its memory for nobody."""
    found = sorted(_orphaned_engines(root / "proc"))
    shown = ", ".join(f"process {pid}" for pid in found) if found else "none"
    remedy = f"kill -9 {' '.join(map(str, found))}" if found else ""
    return Check("leftover-engines", "warn" if found else "ok", shown, "none", remedy)


def _orphaned_engines(processes: Path) -> Iterator[int]:
    if b"python" in _command(processes / "1") or b"trivium" in _command(processes / "1"):
        return  # in a container the server itself may be the first process
    for process in processes.glob("[0-9]*"):
        if ENGINE_MODULE in _command(process) and _parent(process) == 1:
            yield int(process.name)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def _parent(process: Path) -> int | None:
    """The fourth field of proc_pid_stat(5); the second, in brackets, may hold anything."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _wall_ahead() -> float:
    """Seconds by which the wall clock is ahead of the machine's uptime. A process may be stopped between two readings,
    so the pair that was read closest together counts."""
    pairs = []
    for _ in range(5):
        before = time.monotonic()
        ahead = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        pairs.append((time.monotonic() - before, ahead))
    return min(pairs)[1]


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
