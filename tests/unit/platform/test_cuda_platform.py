"""GPUs are found without taking them, and what cannot be used is said by name."""

import pytest
import torch

from trivium.platform import cuda
from trivium.platform.cuda import CudaPlatform
from trivium.platform.nvml import Gpu, NvmlError, _chosen
from trivium.platform.select import select_platform
from trivium.types.errors import ConfigError

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]
H200 = Gpu(
    index=0,
    name="NVIDIA H200",
    compute_capability=(9, 0),
    total_bytes=140 << 30,
    free_bytes=100 << 30,
    processes=(),
    driver="580.1",
)


def gpus(monkeypatch: pytest.MonkeyPatch, *found: Gpu) -> None:
    monkeypatch.setattr(cuda, "visible_gpus", lambda: list(found))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-ab", [1]),
        ("1,7,0", [1]),  # what follows an entry that names nothing is not seen
        ("GPU-a", []),  # names two
        ("", []),
        ("-1", []),
    ],
)
def test_gpus_are_counted_as_the_driver_counts_them(visible: str | None, expected: list[int]) -> None:
    assert _chosen(visible, UUIDS) == expected


def test_a_machine_without_the_driver_says_so_and_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Gpu]:
        raise NvmlError("the driver is not here")

    monkeypatch.setattr(cuda, "visible_gpus", missing)
    assert CudaPlatform().detect().reason == "the driver is not here"
    assert select_platform("auto").platform.name == "cpu"
    with pytest.raises(ConfigError, match="device cuda was asked for, but the driver is not here"):
        select_platform("cuda")


def test_an_old_gpu_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, Gpu(0, "Old", (7, 5), 1 << 30, 1 << 30, (), "500"))
    assert CudaPlatform().detect().reason == "Old has compute capability 7.5, and 8.0 is needed"


def test_a_gpu_that_torch_was_not_built_for_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, H200)
    monkeypatch.setattr(torch.version, "cuda", None)
    detection = CudaPlatform().detect()
    assert not detection.present
    assert detection.reason.startswith("NVIDIA H200 is here, but torch")


def test_a_usable_gpu_is_chosen_before_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, H200)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert select_platform("auto").platform.name == "cuda"
    facts = CudaPlatform().capabilities()
    assert (facts.dtypes[0], facts.memory_bytes, facts.available_bytes) == ("bfloat16", 140 << 30, 100 << 30)
    assert facts.memory_is_dedicated
    assert "wgmma" in facts.features


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="device 'tpu' is none of auto, cuda, cpu"):
        select_platform("tpu")
