"""Every fused op on the GPU against the reference in float32: small and real shapes, fresh values, poisoned memory."""

from __future__ import annotations

import pytest
import torch

from trivium.kernels import fused_cases
from trivium.kernels.cuda import cuda_ops
from trivium.kernels.select import reference_ops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

SHARES = 6  # of the cases, for processes side by side; a kernel is compiled in one of them


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_large", [False, True])
def test_fused_ops_are_the_ops_they_are_made_of(is_large: bool, dtype: torch.dtype, share: int) -> None:
    random = torch.Generator("cuda")
    random.seed()
    ops, reference = cuda_ops("under test"), reference_ops("the oracle")
    wrong = []
    kinds: dict[str, int] = {}
    for case in fused_cases.cases(random, dtype, is_large):
        if kinds.setdefault(case.kin, len(kinds)) % SHARES != share:
            continue
        with torch.inference_mode():
            off = fused_cases.case_error(case, ops, reference, "cuda")
        if not off <= fused_cases.TOLERANCE[dtype]:
            wrong.append(f"{case.name}: {off}")
    assert wrong == []
