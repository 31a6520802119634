"""The kernels of a deterministic engine on a GPU: what the reference computes, each row to the bit as it would be alone.

Here on Triton's interpreter, on small shapes; `tests/gpu` has the compiled ones.
"""

from __future__ import annotations

import pytest
import torch
from triton_interpreter import INTERPRETS, multiply_rows_alike, set_up_interpreter

pytest.importorskip("triton")
from trivium.kernels import fused_cases, logprobs
from trivium.kernels.cases import normal
from trivium.kernels.cuda_ordered import ordered_gpu_ops, ordered_logprobs
from trivium.kernels.select import reference_ops
from trivium.kernels.verify import difference

pytestmark = pytest.mark.skipif(not INTERPRETS, reason="tests/gpu runs them compiled")
set_up_interpreter()

REFERENCE = reference_ops("the oracle")
ORDERED = ordered_gpu_ops("under test")


@pytest.mark.parametrize("part", ["linear_cases", "attention_cases", "expert_cases"])
def test_fused_ops_are_the_ops_they_are_made_of(part: str, random: torch.Generator) -> None:
    for case in getattr(fused_cases, part)(random, torch.float32, False):
        off = fused_cases.case_error(case, ORDERED, REFERENCE, "cpu")
        assert off <= fused_cases.TOLERANCE[torch.float32], f"{case.name}: {off}"


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_a_row_of_a_product_is_the_same_alone_and_among_others(
    rows: int, random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_rows_alike(monkeypatch)
    x, weight = normal(random, rows, 70), normal(random, 45, 70)
    together = ORDERED.linear(x, weight, None)
    for row in range(rows):
        assert torch.equal(ORDERED.linear(x[row : row + 1], weight, None)[0], together[row])


def test_log_probabilities_are_those_of_the_reference_and_the_same_alone(random: torch.Generator) -> None:
    for case in logprobs.cases(random):
        for given, right in zip(ordered_logprobs(*case.arguments), logprobs.reference(*case.arguments), strict=True):
            assert difference(given, right, logprobs.TOLERANCE) is None, case.name
    logits, tokens = normal(random, 5, 1001), torch.arange(5)
    together, _ = ordered_logprobs(logits, tokens, 3)
    for row in range(5):
        alone, _ = ordered_logprobs(logits[row : row + 1], tokens[row : row + 1], 3)
        assert torch.equal(alone[0], together[row])
