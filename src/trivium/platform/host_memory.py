"""Memory of the machine that this process may use, in a container too. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

from trivium.platform.cgroup import memory_limit


def usable_memory(root: Path = Path("/")) -> tuple[int, int, str]:
    """(may use, of these free now, where the number came from), bytes. `root`: of the file system."""
    info = memory_info(root)
    total, available = info["MemTotal"], info["MemAvailable"]
    limit = memory_limit(root)
    if limit is not None and limit.limit_bytes < total:
        return limit.limit_bytes, min(available, max(0, limit.limit_bytes - limit.used_bytes)), limit.file
    return total, available, "/proc/meminfo"


def memory_info(root: Path = Path("/")) -> dict[str, int]:
    """The machine's, as the kernel names it, bytes."""
    lines = (line.partition(":") for line in (root / "proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines}


def resident_bytes() -> int:
    """Of this process, now. Shared pages of mapped files count."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
