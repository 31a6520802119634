"""The driver's own counter of energy."""

from __future__ import annotations

import time

import pytest
import torch

from trivium.platform.nvml import GpuEnergy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]


def test_a_gpu_that_computes_uses_energy() -> None:
    energy = GpuEnergy()
    before = energy.read()
    square = torch.randn(4096, 4096, device="cuda")
    until = time.monotonic() + 30  # the counter is brought up to date some times a second
    while (now := energy.read()) == before and time.monotonic() < until:
        square = square @ square / 64
        torch.cuda.synchronize()
    assert before is not None and now is not None and now > before
