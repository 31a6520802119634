"""Limits that a container or a service sets to its processes: Linux control groups, of both versions.

Every function takes the root of the file system, so that what it reads can be laid out elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

MOUNT = "sys/fs/cgroup"
NO_LIMIT = 1 << 62  # version 1 writes the largest number of whole pages where there is none


class MemoryLimit(Struct, frozen=True):
    limit_bytes: int
    used_bytes: int  # without pages of files, which the system drops when memory is short
    file: str  # where the limit stands, as a process sees it


class ProcessorLimit(Struct, frozen=True):
    cores: float
    file: str


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The least among this process's group and those around it; None: there is none."""
    found: list[MemoryLimit] = []
    for group in _groups(root, "memory"):
        for limit_name, used_name, cached_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is None or used is None or limit >= NO_LIMIT:
                continue
            used = max(0, used - _entries(group / "memory.stat").get(cached_name, 0))
            found.append(MemoryLimit(limit, used, _as_seen(group / limit_name, root)))
    return min(found, key=lambda one: one.limit_bytes, default=None)


def processor_limit(root: Path = Path("/")) -> ProcessorLimit | None:
    found: list[ProcessorLimit] = []
    for group in _groups(root, "cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            found.append(ProcessorLimit(int(quota) / int(period), _as_seen(group / "cpu.max", root)))
        old_quota, old_period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if old_quota is not None and old_period and old_quota > 0:
            found.append(ProcessorLimit(old_quota / old_period, _as_seen(group / "cpu.cfs_quota_us", root)))
    return min(found, key=lambda one: one.cores, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's group and those around it, innermost first. Inside a container the outer ones are not to be seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root / MOUNT, root / MOUNT / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / MOUNT / controller]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            yield from (mount / place for place in (inside, *inside.parents))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:  # absent, or "max"
        return None


def _entries(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _as_seen(path: Path, root: Path) -> str:
    return f"/{path.relative_to(root)}"
