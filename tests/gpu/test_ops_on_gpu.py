"""Ops one by one on the GPU: the reference's results on the CPU; and those of a deterministic engine, to the bit in any batch."""

from __future__ import annotations

import os
from importlib import import_module

import pytest
import torch

from trivium.kernels import fused_cases
from trivium.kernels.cases import normal
from trivium.kernels.cuda import cuda_ops
from trivium.kernels.cuda_ordered import ordered_gpu_ops
from trivium.kernels.fused_cases import mapped
from trivium.kernels.select import reference_ops
from trivium.kernels.verify import difference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

# A GPU's exp and rsqrt differ from a processor's in the last bits; tokens are whole numbers and must not.
TOLERANCE = {"sample": 0.0, "write_kv": 0.0}
TABLES = {"fastest": cuda_ops, "deterministic": ordered_gpu_ops}


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def random() -> torch.Generator:
    random = torch.Generator("cuda")
    print(f"seed {random.seed()}")
    return random


@pytest.mark.parametrize(
    ("op", "table"),
    [(op, "fastest") for op in ("sample", "logprobs", "rms_norm", "gated", "rotary", "write_kv")]
    + [("logprobs", "deterministic")],
)
def test_an_op_gives_what_the_reference_gives_on_the_cpu(op: str, table: str) -> None:
    module, ops = import_module(f"trivium.kernels.{op}"), TABLES[table]("under test")
    fresh = torch.Generator()
    fresh.seed()
    wrong = []
    cases = list(module.cases(fresh))
    for case in cases[int.from_bytes(os.urandom(1)) % 3 :: 3] if len(cases) > 100 else cases:
        given = mapped(case.arguments, lambda tensor: tensor.to("cuda"))
        with torch.inference_mode():
            found, right = getattr(ops, op)(*given), module.reference(*case.arguments)
        tolerance = max(case.tolerance or module.TOLERANCE, TOLERANCE.get(op, 2e-5))
        pairs = zip(as_list(found, given), as_list(right, case.arguments), strict=True)
        problems = [problem for mine, theirs in pairs if (problem := difference(mine, theirs, tolerance)) is not None]
        wrong += [f"{case.name}: {problem}" for problem in problems]
    assert wrong == []


def as_list(result: object, arguments: tuple[object, ...]) -> list[torch.Tensor]:
    """What an op gave, or where it gives nothing, what it was given to write into."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [item for item in (result or arguments) if isinstance(item, torch.Tensor)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dtype", "is_large"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
)
@pytest.mark.parametrize("part", ["linear_cases", "attention_cases", "expert_cases"])
def test_fused_ops_of_a_deterministic_engine_are_the_ops_they_are_made_of(
    part: str, dtype: torch.dtype, is_large: bool, random: torch.Generator
) -> None:
    ops, reference = ordered_gpu_ops("under test"), reference_ops("the oracle")
    wrong = []
    for case in getattr(fused_cases, part)(random, dtype, is_large):
        with torch.inference_mode():
            off = fused_cases.case_error(case, ops, reference, "cuda")
        if not off <= fused_cases.TOLERANCE[dtype]:
            wrong.append(f"{case.name}: {off}")
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_out", [576, 10240])
def test_a_row_of_a_product_has_the_same_bits_among_any_number_of_rows(
    num_out: int, dtype: torch.dtype, random: torch.Generator
) -> None:
    ops = ordered_gpu_ops("under test")
    x, weight = normal(random, 1000, 576, dtype=dtype), normal(random, num_out, 576, dtype=dtype)
    with torch.inference_mode():
        together = ops.linear(x, weight, None)
        for first, last in [(0, 1), (999, 1000), (5, 7), (63, 66), (100, 228), (3, 300)]:
            assert torch.equal(ops.linear(x[first:last], weight, None), together[first:last])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_comes_from_its_experts_with_the_same_bits_in_any_batch(
    dtype: torch.dtype, random: torch.Generator
) -> None:
    ops = ordered_gpu_ops("under test")
    case = list(fused_cases.expert_cases(random, dtype, is_large=False))[-1]
    hidden, norm, eps, layers = case.arguments
    with torch.inference_mode():
        together = ops.norm_experts_add(hidden, norm, eps, layers)
        for first, last in [(0, 1), (len(hidden) - 1, len(hidden)), (5, 8), (3, 40)]:
            assert torch.equal(ops.norm_experts_add(hidden[first:last], norm, eps, layers), together[first:last])
