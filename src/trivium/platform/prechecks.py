"""The checks that every platform shares, and the runner for all: each is data, and none can end the others."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trivium.platform.contract import Requirement
from trivium.platform.requirements import check_requirement
from trivium.types.checks import Check

MIB, GIB = 1 << 20, 1 << 30
LEAST_SHARED_BYTES = 64 * MIB  # masks of grammars, for many rows
LEAST_OPEN_FILES = 1024  # a socket for each client
LEAST_DISK_BYTES = GIB
EARLIEST_CLOCK = 1_735_689_600  # seconds; 2025-01-01, before which no release was made
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SHARED = Path("/dev/shm")


def run_prechecks(checks: Iterable[Callable[[], Check]]) -> tuple[Check, ...]:
    """A check that itself fails is a warning of its own name."""
    return tuple(_run(check) for check in checks)


def _run(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = getattr(check, "__name__", "check").removeprefix("check_").replace("_", "-")
        return Check(name, "warn", f"could not be looked at: {type(error).__name__}: {error}", "", "")


def common_prechecks(requirements: Iterable[Requirement], cache: Path) -> tuple[Check, ...]:
    """`cache`: where models and packed weights are kept."""
    versions = [_checker_of(requirement) for requirement in requirements]
    return run_prechecks([*versions, check_shared_memory, check_open_files, check_huge_pages, check_clock]) + (
        run_prechecks([lambda: check_cache(cache)])
    )


def _checker_of(requirement: Requirement) -> Callable[[], Check]:
    return lambda: check_requirement(requirement)


def check_shared_memory(path: Path = SHARED) -> Check:
    free = shutil.disk_usage(path).free
    enough = free >= LEAST_SHARED_BYTES
    remedy = "" if enough else "give the container more shared memory: --shm-size=1g"
    return Check(
        "shared-memory",
        "ok" if enough else "warn",
        f"{free // MIB} MiB free",
        f">= {LEAST_SHARED_BYTES // MIB} MiB",
        remedy,
    )


def check_open_files() -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= LEAST_OPEN_FILES
    shown = "no limit" if limit == resource.RLIM_INFINITY else str(limit)
    remedy = "" if enough else f"ulimit -n {LEAST_OPEN_FILES * 64}"
    return Check("open-files", "ok" if enough else "warn", shown, f">= {LEAST_OPEN_FILES}", remedy)


def check_huge_pages(path: Path = HUGE_PAGES) -> Check:
    """The KV cache is read in long runs, which large pages make cheaper."""
    if not path.exists():
        return Check("huge-pages", "ok", "not offered by this kernel", "madvise or always", "")
    chosen = path.read_text().partition("[")[2].partition("]")[0]
    off = chosen == "never"
    remedy = f"echo madvise > {path}" if off else ""
    return Check("huge-pages", "warn" if off else "ok", chosen, "madvise or always", remedy)


def check_clock() -> Check:
    now = time.time()
    right = now >= EARLIEST_CLOCK
    shown = time.strftime("%Y-%m-%d", time.gmtime(now))
    return Check(
        "clock", "ok" if right else "warn", shown, "today", "" if right else "set the clock: certificates fail"
    )


def check_cache(cache: Path) -> Check:
    """The nearest directory that exists, since the cache itself is made at its first use."""
    place = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    if not os.access(place, os.W_OK):
        return Check(
            "cache", "warn", f"{place} cannot be written", "writable", "set TRIVIUM_HOME to a directory of yours"
        )
    free = shutil.disk_usage(place).free
    enough = free >= LEAST_DISK_BYTES
    remedy = "" if enough else f"make room in {place}, or set TRIVIUM_HOME to another disk"
    shown = f"{free // MIB} MiB free in {place}"
    return Check("cache", "ok" if enough else "warn", shown, f">= {LEAST_DISK_BYTES // MIB} MiB", remedy)


def number_of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
