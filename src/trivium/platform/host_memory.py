"""Memory of the machine that this process may use, in a container too. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_memory() -> tuple[int, int, str]:
    """(may use, of these free now, where the number came from), bytes."""
    info = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, value = line.split(":", 1)
        info[key] = int(value.split()[0]) * 1024
    total, available, source = info["MemTotal"], info["MemAvailable"], "/proc/meminfo"
    limit = _read_int(CGROUP / "memory.max")
    used = _read_int(CGROUP / "memory.current")
    if limit is not None and used is not None and limit < total:
        return limit, min(available, max(0, limit - used)), "cgroup memory.max"
    return total, available, source


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def resident_bytes() -> int:
    """Of this process, now. Shared pages of mapped files count."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
