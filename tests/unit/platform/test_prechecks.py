"""Checks before a start: each goes red for its reason, with what was measured, what is wanted, and one line of remedy."""

from functools import partial
from pathlib import Path

import pytest

from trivium.platform import cuda
from trivium.platform.contract import Requirement
from trivium.platform.cpu import check_cpu_load, check_cpu_numa, check_memory
from trivium.platform.nvml import Gpu, GpuProcess, NvmlError
from trivium.platform.prechecks import run_prechecks
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


def test_a_busy_or_split_or_full_machine_is_told() -> None:
    assert (check_cpu_load(0.5, 4).state, check_cpu_load(30.0, 4).state) == ("ok", "warn")
    assert (check_cpu_numa(1).state, check_cpu_numa(2).state) == ("ok", "warn")
    assert "numactl" in check_cpu_numa(2).remedy
    assert check_memory((8 * GIB, 4 * GIB, "cgroup")).state == "ok"
    assert check_memory((8 * GIB, GIB // 2, "cgroup")).state == "warn"


def test_a_check_that_itself_fails_ends_no_other() -> None:
    def check_something() -> Check:
        raise PermissionError("not for you")

    broken, bound, fine = run_prechecks(
        [check_something, partial(check_something), lambda: Check("next", "ok", "", "", "")]
    )
    assert (broken.name, broken.state) == ("something", "warn") and "not for you" in broken.measured and broken.remedy
    assert bound == broken and fine.state == "ok"


def test_a_gpu_that_others_fill_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "visible_gpus", lambda: [SMALL_GPU])
    check = cuda.check_gpu_memory()
    assert check.state == "warn" and "process 4711: 13312 MiB" in check.measured
    assert cuda.check_gpu_driver().state == cuda.check_gpu_visible().state == "ok"


def test_a_gpu_that_cannot_be_reached_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Gpu]:
        raise NvmlError("the driver is not here")

    monkeypatch.setattr(cuda, "visible_gpus", missing)
    assert cuda.check_gpu_driver().state == "fail" and "--gpus all" in cuda.check_gpu_driver().remedy
    monkeypatch.setattr(cuda, "visible_gpus", list)
    assert "CUDA_VISIBLE_DEVICES" in cuda.check_gpu_visible().remedy
    monkeypatch.setattr(cuda, "DEVICE_FILES", tmp_path)
    assert cuda.check_gpu_permissions().state == "fail"
    (tmp_path / "nvidia0").touch()
    assert cuda.check_gpu_permissions().state == "ok"
    monkeypatch.setattr(cuda.os, "access", lambda *_: False)
    assert "nvidia0 is closed to this user" in cuda.check_gpu_permissions().measured
