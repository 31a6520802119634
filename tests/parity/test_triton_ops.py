"""The Triton kernels compute what the reference computes: here on Triton's interpreter, on small shapes.

`tests/gpu` runs the same cases, and those of real models' shapes, on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from triton_interpreter import INTERPRETS, let_scalars_be_indices

pytest.importorskip("triton")
from trivium.kernels import fused_cases, gated, rms_norm
from trivium.kernels.cases import error
from trivium.kernels.cuda import gpu_ops
from trivium.kernels.sample import NOT_FINITE
from trivium.kernels.select import reference_ops
from trivium.kernels.triton.argmax import argmax

pytestmark = pytest.mark.skipif(not INTERPRETS, reason="tests/gpu runs them compiled")
let_scalars_be_indices()

REFERENCE = reference_ops("the oracle")
TRITON = gpu_ops("under test", num_processors=4)


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def fresh() -> torch.Generator:
    random = torch.Generator()
    random.seed()
    return random


@pytest.mark.parametrize("part", ["linear_cases", "attention_cases", "expert_cases"])
def test_fused_ops_are_the_ops_they_are_made_of(part: str) -> None:
    for case in getattr(fused_cases, part)(fresh(), torch.float32, False):
        off = fused_cases.case_error(case, TRITON, REFERENCE, "cpu")
        assert off <= fused_cases.TOLERANCE[torch.float32], f"{case.name}: {off}"


@pytest.mark.parametrize("op", [rms_norm, gated])
def test_single_ops_are_near_the_reference(op) -> None:
    name = op.__name__.rsplit(".", 1)[1]
    for case in op.cases(fresh()):
        off = error(getattr(TRITON, name)(*case.arguments), op.reference(*case.arguments))
        assert off <= 2 * op.TOLERANCE, f"{case.name}: {off}"


def test_argmax_finds_the_lowest_of_equals_and_notices_what_is_no_number() -> None:
    logits = torch.randn(6, 9000, generator=fresh())
    logits[1, 70] = logits[1, 8000] = 9.0
    logits[2, 8999] = float("nan")
    logits[3, 4] = float("inf")
    logits[4] = float("-inf")
    found = argmax(logits).tolist()
    assert found == [int(logits[0].argmax()), 70, NOT_FINITE, NOT_FINITE, NOT_FINITE, int(logits[5].argmax())]


def test_argmax_of_bfloat16_is_that_of_the_same_numbers_in_float32() -> None:
    logits = torch.randn(3, 9000, generator=fresh()).bfloat16()  # so coarse that several are the largest
    assert argmax(logits).tolist() == argmax(logits.float()).tolist()


def test_logits_are_written_where_they_are_wanted() -> None:
    for rows in (1, 3):
        x, head = torch.randn(rows, 40, generator=fresh()), torch.randn(70, 40, generator=fresh())
        room = torch.full((5, 70), float("nan"))
        TRITON.logits(x, head, out=room[:rows])
        assert error(room[:rows], x @ head.T) <= fused_cases.TOLERANCE[torch.float32]
        assert room[rows:].isnan().all()
