"""Checks of the process and of the machine: each is given the condition it watches for, and goes red with its remedy.

What a test cannot make of the machine itself (a container's limits, a governor) is laid out in a directory as the kernel
shows it, and given as the root of the file system.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from trivium.platform import machine_checks
from trivium.platform.cgroup import MemoryLimit, ProcessorLimit, memory_limit, processor_limit
from trivium.platform.cpu import CpuPlatform, usable_threads
from trivium.platform.cuda import CudaPlatform
from trivium.platform.host_memory import usable_memory
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
from trivium.platform.prechecks import common_prechecks
from trivium.platform.process_checks import (
    check_cache,
    check_container_memory,
    check_container_processors,
    check_loopback,
    check_shared_memory,
    check_temporary_files,
)
from trivium.platform.requirements import check_single_torch
from trivium.types.checks import Check

GIB = 1 << 30
MEMINFO = """MemTotal: {total} kB
MemAvailable: {available} kB
SwapTotal: {swap} kB
SwapFree: {swap_free} kB
"""


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(total: int = 64 * GIB, available: int = 32 * GIB, swap: int = 0, swap_free: int = 0) -> dict[str, str]:
    numbers = {"total": total, "available": available, "swap": swap, "swap_free": swap_free}
    return {"proc/meminfo": MEMINFO.format(**{name: value // 1024 for name, value in numbers.items()})}


NEW_CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
    "sys/fs/cgroup/cpu.max": "50000 100000\n",
}
OLD_CONTAINER = {
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/outer/inner\n2:cpuacct,cpu:/outer\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
    "sys/fs/cgroup/memory/outer/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/outer/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/outer/memory.stat": f"total_inactive_file {2 * GIB}\n",
    "sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory/outer/inner/memory.usage_in_bytes": f"{1 * GIB}\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/outer/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu/outer/cpu.cfs_period_us": "100000\n",
}
NO_LIMITS = {
    "proc/self/cgroup": "0::/user.slice\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/memory.current": "1000\n",
    "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
}


@pytest.mark.parametrize(
    ("container", "memory_file", "processor_file"),
    [
        (NEW_CONTAINER, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max"),
        (
            OLD_CONTAINER,
            "/sys/fs/cgroup/memory/outer/memory.limit_in_bytes",
            "/sys/fs/cgroup/cpu/outer/cpu.cfs_quota_us",
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_a_container_s_limits_are_told_and_kept(
    container: dict[str, str], memory_file: str, processor_file: str, tmp_path: Path
) -> None:
    root = lay_out(tmp_path, container | meminfo())
    assert memory_limit(root) == MemoryLimit(4 * GIB, 1 * GIB, memory_file)
    assert processor_limit(root) == ProcessorLimit(0.5, processor_file)
    assert usable_memory(root) == (4 * GIB, 3 * GIB, memory_file)
    assert usable_threads(root) == (1, processor_file)
    memory, processors = check_container_memory(root), check_container_processors(root)
    assert (memory.state, processors.state) == ("warn", "warn")
    assert memory.measured == f"4096 of 65536 MiB ({memory_file})" and "--memory" in memory.remedy
    assert processors.measured.startswith("0.5 of ") and "--cpus" in processors.remedy


@pytest.mark.parametrize("container", [NO_LIMITS, {}], ids=["no limits", "no groups"])
def test_without_a_limit_the_machine_s_memory_is_the_process_s(container: dict[str, str], tmp_path: Path) -> None:
    root = lay_out(tmp_path, container | meminfo())
    assert usable_memory(root) == (64 * GIB, 32 * GIB, "/proc/meminfo")
    assert usable_threads(root)[1] == "affinity"
    assert check_container_memory(root).state == check_container_processors(root).state == "ok"


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    root = lay_out(tmp_path, NEW_CONTAINER | meminfo(total=2 * GIB, available=1 * GIB))
    assert usable_memory(root) == (2 * GIB, 1 * GIB, "/proc/meminfo")
    assert check_container_memory(root).state == "ok"


def test_little_shared_memory_names_the_flag(tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path, wanted_bytes=1).state == "ok"
    for place, wanted in ((tmp_path, 1 << 60), (tmp_path / "absent", 1)):
        check = check_shared_memory(place, wanted)
        assert check.state == "warn" and "--shm-size" in check.remedy


# A process of its own sets its limits or its environment, and is then asked: nobody else is hurt.
ASK = """
import resource, sys, msgspec
from trivium.platform import process_checks
limit = getattr(resource, sys.argv[1]) if sys.argv[1] else None
if limit is not None:
    soft, hard = int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(limit, (soft, hard))
check = getattr(process_checks, sys.argv[4])
sys.stdout.buffer.write(msgspec.json.encode(check(*map(int, sys.argv[5:]))))
"""


def asked_in_a_process(check: str, *numbers: int, limit: tuple[str, int, int] = ("", 0, 0), **environ: str) -> Check:
    command = [sys.executable, "-c", ASK, *map(str, limit), check, *map(str, numbers)]
    done = subprocess.run(command, env=os.environ | environ, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Check)


@pytest.mark.parametrize(
    ("hard", "clients", "state"),
    [(512, 384, "ok"), (512, 385, "warn")],
)
def test_fewer_open_files_than_clients_are_told_with_both_numbers(hard: int, clients: int, state: str) -> None:
    """The soft limit is the server's to raise."""
    check = asked_in_a_process("check_open_files", clients, limit=("RLIMIT_NOFILE", 256, hard))
    assert (check.name, check.state, check.measured) == ("open-files", state, "512")
    assert check.wanted == f">= {clients + 128}, for {clients} clients"
    assert check.remedy.startswith(f"raise the hard limit (ulimit -Hn {clients + 128})") == (state == "warn")


def test_a_limit_of_addresses_is_told() -> None:
    check = asked_in_a_process("check_address_space", limit=("RLIMIT_AS", 64 * GIB, 64 * GIB))
    assert (check.state, check.measured) == ("warn", "65536 MiB") and "ulimit -v" in check.remedy


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({"PYTHONUTF8": "1"}, "ok"),
        ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}, "warn"),
    ],
)
def test_a_terminal_without_unicode_is_told(environ: dict[str, str], state: str) -> None:
    check = asked_in_a_process("check_locale", **environ)
    assert check.state == state and ("C.UTF-8" in check.remedy) == (state == "warn")


def test_temporary_files_that_cannot_be_written_are_a_failure(tmp_path: Path) -> None:
    assert check_temporary_files(tmp_path, wanted_bytes=1).state == "ok"
    gone = check_temporary_files(tmp_path / "absent")
    assert gone.state == "fail" and "TMPDIR" in gone.remedy
    assert check_temporary_files(tmp_path, wanted_bytes=1 << 60).state == "warn"


def test_a_cache_that_cannot_be_written_or_is_full_is_told(tmp_path: Path) -> None:
    wanted = check_cache(tmp_path / "not" / "made" / "yet").wanted
    assert wanted == "writable, >= 1024 MiB free"
    full = check_cache(tmp_path, wanted_bytes=1 << 60)
    assert full.state == "warn" and f"make room in {tmp_path}" in full.remedy
    (tmp_path / "file").touch()
    closed = check_cache(tmp_path / "file")
    assert closed.state == "warn" and "set TRIVIUM_HOME" in closed.remedy


def test_a_machine_without_loopback_is_a_failure() -> None:
    assert check_loopback().state == "ok"
    check = check_loopback("192.0.2.1")  # an address that is nobody's
    assert check.state == "fail" and "ip link set lo up" in check.remedy


def test_two_torches_are_a_failure(tmp_path: Path) -> None:
    for place, version in (("a", "2.11.0"), ("b", "2.13.0")):
        lay_out(tmp_path / place, {f"torch-{version}.dist-info/METADATA": f"Name: torch\nVersion: {version}\n"})
    assert check_single_torch([str(tmp_path / "a")]).state == "ok"
    check = check_single_torch([str(tmp_path / "a"), str(tmp_path / "b")])
    assert check.state == "fail" and "2.11.0" in check.measured and "2.13.0" in check.measured and check.remedy
    assert check_single_torch().state == "ok"


@pytest.mark.parametrize(("used", "state"), [(0, "ok"), (1 * GIB, "ok"), (3 * GIB, "warn")])
def test_a_machine_that_swaps_is_told(used: int, state: str, tmp_path: Path) -> None:
    check = check_swap(lay_out(tmp_path, meminfo(swap=8 * GIB, swap_free=8 * GIB - used)))
    assert check.state == state and check.measured == f"{used >> 20} of 8192 MiB in use"
    assert bool(check.remedy) == (state == "warn")


def test_no_swap_is_no_harm(tmp_path: Path) -> None:
    check = check_swap(lay_out(tmp_path, meminfo()))
    assert (check.state, check.measured) == ("ok", "none")


FREQUENCY = "sys/devices/system/cpu/cpu0/cpufreq/"
ONE_LINE: list[tuple[Callable[[Path], Check], dict[str, str], str]] = [
    (check_overcommit, {"proc/sys/vm/overcommit_memory": "0\n"}, "ok"),
    (check_overcommit, {"proc/sys/vm/overcommit_memory": "2\n"}, "warn"),
    (check_huge_pages, {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"}, "ok"),
    (check_huge_pages, {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}, "warn"),
    (check_huge_pages, {}, "ok"),
    (check_cpu_governor, {}, "ok"),
    (check_cpu_governor, {FREQUENCY + "scaling_governor": "schedutil\n"}, "ok"),
    (
        check_cpu_governor,
        {FREQUENCY + "scaling_governor": "powersave\n", FREQUENCY + "scaling_driver": "acpi\n"},
        "warn",
    ),
    (
        check_cpu_governor,
        {FREQUENCY + "scaling_governor": "powersave\n", FREQUENCY + "scaling_driver": "intel_pstate\n"},
        "ok",
    ),
    (
        check_cpu_governor,
        {
            FREQUENCY + "scaling_governor": "powersave\n",
            FREQUENCY + "scaling_driver": "amd-pstate-epp\n",
            FREQUENCY + "energy_performance_preference": "power\n",
        },
        "warn",
    ),
    (check_clock_source, {"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n"}, "ok"),
    (check_clock_source, {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"}, "warn"),
    (check_clock_source, {}, "ok"),
]


@pytest.mark.parametrize(("check", "files", "state"), ONE_LINE)
def test_a_setting_of_the_kernel_that_costs_speed_is_told(
    check: Callable[[Path], Check], files: dict[str, str], state: str, tmp_path: Path
) -> None:
    found = check(lay_out(tmp_path, files))
    assert found.state == state and bool(found.remedy) == (state == "warn") and found.measured


def test_a_clock_before_the_installation_is_told(tmp_path: Path) -> None:
    installed = tmp_path / "file"
    installed.touch()
    os.utime(installed, (2_000_000_000, 2_000_000_000))
    assert check_clock(installed, now=2_000_000_001).state == "ok"
    check = check_clock(installed, now=86400.0)
    assert (check.state, check.measured) == ("warn", "1970-01-02") and "set the clock" in check.remedy
    os.utime(installed, (0, 0))  # as images whose files have no dates
    assert check_clock(installed, now=86400.0).state == "warn"


@pytest.mark.parametrize("seconds", [-3600.0, 2.0])
def test_a_clock_that_jumps_is_told(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, ahead = ClockWatch(), machine_checks._wall_ahead
    monkeypatch.setattr(machine_checks, "_wall_ahead", lambda: ahead() + seconds)
    check = clocks.check_clock_steady()
    assert check.state == "warn" and check.remedy


def engine(pid: int, parent: int) -> dict[str, str]:
    return {
        f"proc/{pid}/cmdline": "/usr/bin/python3\0-m\0trivium.engine.process\0",
        f"proc/{pid}/stat": f"{pid} (a ) b) S {parent} 1 1 0",
    }


def test_an_engine_that_outlived_its_server_is_told_by_its_number(tmp_path: Path) -> None:
    machine = engine(41, parent=1) | engine(42, parent=40) | {"proc/40/cmdline": "trivium\0serve\0"}
    root = lay_out(tmp_path, machine | {"proc/1/cmdline": "/sbin/init\0"})
    check = check_leftover_engines(root)
    assert (check.state, check.measured, check.remedy) == ("warn", "process 41", "kill -9 41")
    lay_out(tmp_path, {"proc/1/cmdline": "/usr/bin/python3\0-m\0trivium\0serve\0"})
    assert check_leftover_engines(root).state == "ok"


def test_every_check_of_this_machine_has_a_name_of_its_own_and_a_remedy_where_it_is_red(tmp_path: Path) -> None:
    found = common_prechecks((), tmp_path, cache_bytes=0, num_clients=1, clocks=ClockWatch())
    assert len({check.name for check in found}) == len(found)
    for check in found:
        assert check.measured and check.wanted and bool(check.remedy) == (check.state != "ok"), check
        assert "could not be looked at" not in check.measured, check


def test_every_check_has_its_line_in_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    found = common_prechecks((), tmp_path, cache_bytes=0, num_clients=1, clocks=ClockWatch())
    names = {check.name for check in (*found, *CpuPlatform().precheck(), *CudaPlatform().precheck())}
    assert {name for name in names if f"`{name}`" not in page} == set()
