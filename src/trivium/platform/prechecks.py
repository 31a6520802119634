"""The runner of all checks before a start, and the list of those that every platform shares. None can end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from trivium.platform.contract import Requirement
from trivium.platform.machine_checks import (
    ClockWatch,
    check_clock,
    check_clock_source,
    check_cpu_governor,
    check_huge_pages,
    check_leftover_engines,
    check_overcommit,
    check_swap,
)
from trivium.platform.process_checks import (
    check_address_space,
    check_cache,
    check_container_memory,
    check_container_processors,
    check_locale,
    check_loopback,
    check_open_files,
    check_shared_memory,
    check_temporary_files,
)
from trivium.platform.requirements import check_requirement, check_single_torch
from trivium.types.checks import Check


def run_prechecks(checks: Iterable[Callable[[], Check]]) -> tuple[Check, ...]:
    """A check that itself fails is a warning of its name, which is that of the function: check_open_files is open-files."""
    return tuple(_run(check) for check in checks)


def _run(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        function = check.func if isinstance(check, partial) else check
        name = getattr(function, "__name__", "check").removeprefix("check_").replace("_", "-")
        measured = f"could not be looked at: {type(error).__name__}: {error}"
        return Check(name, "warn", measured, "an answer", "look at what is said; the start may go well all the same")


def common_prechecks(
    requirements: Iterable[Requirement], cache: Path, cache_bytes: int, num_clients: int, clocks: ClockWatch
) -> tuple[Check, ...]:
    """`cache`: where models and packed weights are kept, and `cache_bytes` what may be written there. `num_clients`: that
    may wait and be served at once. `clocks`: begun some time ago."""
    return run_prechecks(
        [
            *(partial(check_requirement, requirement) for requirement in requirements),
            check_single_torch,
            check_locale,
            check_loopback,
            check_container_memory,
            check_container_processors,
            check_shared_memory,
            partial(check_open_files, num_clients),
            check_address_space,
            check_overcommit,
            check_temporary_files,
            partial(check_cache, cache, cache_bytes),
            check_swap,
            check_leftover_engines,
            check_huge_pages,
            check_cpu_governor,
            check_clock,
            check_clock_source,
            clocks.check_clock_steady,
        ]
    )


def number_of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
