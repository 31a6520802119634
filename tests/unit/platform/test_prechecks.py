"""Checks before a start: each goes red for its reason, with what was measured, what is wanted, and one line of remedy."""

from pathlib import Path

import pytest

from trivium.platform import cuda, prechecks
from trivium.platform.contract import Requirement
from trivium.platform.cpu import _check_load, _check_nodes, check_free_memory
from trivium.platform.nvml import Gpu, GpuProcess, NvmlError
from trivium.platform.prechecks import check_cache, check_huge_pages, check_open_files, run_prechecks
from trivium.platform.requirements import CORE_REQUIREMENTS, check_requirement
from trivium.types.checks import Check

GIB = 1 << 30
SMALL_GPU = Gpu(0, "Old", (8, 0), 16 * GIB, 2 * GIB, (GpuProcess(4711, 13 * GIB),), "580.1")


@pytest.mark.parametrize("requirement", CORE_REQUIREMENTS, ids=lambda requirement: requirement.component)
def test_what_is_installed_here_is_what_is_wanted(requirement: Requirement) -> None:
    check = check_requirement(requirement)
    assert check.state == "ok" and check.measured and not check.remedy


@pytest.mark.parametrize(
    ("requirement", "state", "measured", "remedy"),
    [
        (Requirement("msgspec", ">=99"), "fail", "0.", "pip install 'msgspec>=99'"),
        (Requirement("torch_npu", ">=2.11"), "fail", "not installed", "pip install 'torch_npu>=2.11'"),
        (Requirement("triton_npu", "", needed=False), "warn", "not installed", "pip install"),
        (Requirement("python", "<3"), "fail", "3.", "use a system with python <3"),
    ],
)
def test_a_version_that_is_not_wanted_is_told_with_the_one_that_is(
    requirement: Requirement, state: str, measured: str, remedy: str
) -> None:
    check = check_requirement(requirement)
    assert check.state == state and check.measured.startswith(measured) and check.remedy.startswith(remedy)


def test_a_version_known_to_fail_is_told_so() -> None:
    import msgspec

    check = check_requirement(Requirement("msgspec", "", known_bad=(msgspec.__version__,)))
    assert check.state == "fail" and "known to fail" in check.measured


def test_little_shared_memory_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prechecks, "LEAST_SHARED_BYTES", 1 << 60)
    check = prechecks.check_shared_memory()
    assert check.state == "warn" and "--shm-size" in check.remedy


def test_few_open_files_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prechecks.resource, "getrlimit", lambda _: (256, 256))
    check = check_open_files()
    assert (check.state, check.measured) == ("warn", "256") and check.remedy.startswith("ulimit -n")


@pytest.mark.parametrize(("setting", "state"), [("always [madvise] never", "ok"), ("always madvise [never]", "warn")])
def test_large_pages_that_are_off_are_told(setting: str, state: str, tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text(setting)
    assert check_huge_pages(tmp_path / "enabled").state == state
    assert check_huge_pages(tmp_path / "absent").state == "ok"


def test_a_wrong_clock_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prechecks.time, "time", lambda: 86400.0)
    check = prechecks.check_clock()
    assert (check.state, check.measured) == ("warn", "1970-01-02")


def test_a_cache_that_cannot_be_written_or_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_cache(tmp_path / "not" / "made" / "yet").state == "ok"
    monkeypatch.setattr(prechecks, "LEAST_DISK_BYTES", 1 << 60)
    assert "make room in" in check_cache(tmp_path).remedy
    monkeypatch.setattr(prechecks.os, "access", lambda *_: False)
    assert "set TRIVIUM_HOME" in check_cache(tmp_path).remedy


def test_a_busy_or_split_or_full_machine_is_told() -> None:
    assert (_check_load(0.5, 4).state, _check_load(30.0, 4).state) == ("ok", "warn")
    assert (_check_nodes(1).state, _check_nodes(2).state) == ("ok", "warn")
    assert "numactl" in _check_nodes(2).remedy
    assert check_free_memory(8 * GIB, 4 * GIB, "cgroup").state == "ok"
    assert check_free_memory(8 * GIB, GIB // 2, "cgroup").state == "warn"


def test_a_check_that_itself_fails_ends_no_other() -> None:
    def check_something() -> Check:
        raise PermissionError("not for you")

    broken, fine = run_prechecks([check_something, lambda: Check("next", "ok", "", "", "")])
    assert (broken.name, broken.state) == ("something", "warn") and "not for you" in broken.measured
    assert fine.state == "ok"


def test_a_gpu_that_others_fill_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "visible_gpus", lambda: [SMALL_GPU])
    check = cuda.check_free_memory()
    assert check.state == "warn" and "process 4711: 13312 MiB" in check.measured
    assert cuda.check_driver().state == cuda.check_visible().state == "ok"


def test_a_gpu_that_cannot_be_reached_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Gpu]:
        raise NvmlError("the driver is not here")

    monkeypatch.setattr(cuda, "visible_gpus", missing)
    assert cuda.check_driver().state == "fail" and "--gpus all" in cuda.check_driver().remedy
    monkeypatch.setattr(cuda, "visible_gpus", list)
    assert "CUDA_VISIBLE_DEVICES" in cuda.check_visible().remedy
    monkeypatch.setattr(cuda, "DEVICE_FILES", tmp_path)
    assert cuda.check_permissions().state == "fail"
    (tmp_path / "nvidia0").touch()
    assert cuda.check_permissions().state == "ok"
    monkeypatch.setattr(cuda.os, "access", lambda *_: False)
    assert "nvidia0 is closed to this user" in cuda.check_permissions().measured
