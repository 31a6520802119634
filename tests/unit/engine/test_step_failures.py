"""What becomes of steps that failed: by what the platform says of the error, and by whose error it is."""

from __future__ import annotations

import pytest
import torch

from trivium.engine.step_failures import StepFailures
from trivium.platform.cuda import CudaPlatform
from trivium.platform.known_errors import KnownErrors, Reaction

GPU = KnownErrors(CudaPlatform().running().errors.value or ())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("anything"),
    ],
)
def test_want_of_memory_costs_the_requests_of_the_step_and_not_the_engine(error: Exception) -> None:
    failures = StepFailures(GPU)
    assert failures.react(error, now=0.0) is Reaction.FAIL_REQUEST


@pytest.mark.parametrize("said", ["an illegal memory access was encountered", "unspecified launch failure"])
def test_what_else_an_accelerator_raises_is_for_good(said: str) -> None:
    error = torch.AcceleratorError(f"CUDA error: {said}")
    with pytest.raises(torch.AcceleratorError, match=said):
        StepFailures(GPU).react(error, now=0.0)
