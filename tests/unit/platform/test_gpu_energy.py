"""What NVIDIA's library is asked for energy, with a library that stands in for it; tests/gpu has the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trivium.platform import nvml
from trivium.platform.nvml import GpuEnergy, NvmlError

OK, NOT_SUPPORTED = 0, 3


class StandIn:
    def __init__(self, *millijoules: int) -> None:
        self.millijoules = list(millijoules)
        self.code = OK
        self.functions = SimpleNamespace(
            nvmlErrorString=lambda code: b"Not Supported",
            nvmlDeviceGetCount_v2=self._count,
            nvmlDeviceGetHandleByIndex_v2=self._handle,
            nvmlDeviceGetUUID=self._uuid,
            nvmlDeviceGetTotalEnergyConsumption=self._energy,
        )

    def _count(self, found: Any) -> int:
        found._obj.value = len(self.millijoules)
        return OK

    def _handle(self, index: int, found: Any) -> int:
        found._obj.value = index + 1
        return OK

    def _uuid(self, handle: Any, found: Any, size: int) -> int:
        found.value = f"GPU-{handle.value}".encode()
        return OK

    def _energy(self, handle: Any, found: Any) -> int:
        found._obj.value = self.millijoules[handle.value - 1]
        return self.code


def test_the_energy_is_that_of_the_gpus_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn(1500, 70_000, 250)
    monkeypatch.setattr(nvml, "_started", lambda: library.functions)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    energy = GpuEnergy()
    assert energy.read() == pytest.approx(1.75)
    library.millijoules[0] = 3500
    assert energy.read() == pytest.approx(3.75)
    library.code = NOT_SUPPORTED
    assert energy.read() is None


def test_gpus_that_do_not_tell_or_are_not_there_are_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    silent, none = StandIn(1500), StandIn()
    silent.code = NOT_SUPPORTED
    for library, why in ((silent, "read the energy: Not Supported"), (none, "no GPU may be seen")):
        monkeypatch.setattr(nvml, "_started", lambda library=library: library.functions)
        with pytest.raises(NvmlError, match=why):
            GpuEnergy()
