"""Linear layers on packed float weights: two chains of fused multiply-adds over each 32 columns."""

import math
from collections.abc import Callable

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.kernels import linear
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.weights import PackedTensor

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1, 1, 1), (1, 7, 5), (1, 40, 96), (3, 65, 33), (5, 130, 67), (7, 33, 576), (33, 48, 1030), (128, 96, 64)]
FUSED = [name for name in INSTRUCTION_SETS if name != "baseline"]  # the baseline rounds products before it adds

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def as_multiplied(x: Tensor, dtype: torch.dtype) -> Tensor:
    """With bfloat16 weights activations are rounded too."""
    return x.bfloat16().float() if dtype == torch.bfloat16 else x


@every_path
@every_dtype
def test_it_is_the_reference(dtype: torch.dtype, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for rows, num_out, num_in in SHAPES:
        x, weight, bias = (
            normal(random, rows, num_in),
            normal(random, num_out, num_in, dtype=dtype),
            normal(random, num_out),
        )
        packed = ops.prepare(weight)
        assert isinstance(packed, PackedTensor) and packed.shape == weight.shape
        for added in (bias, None):
            want = linear.reference(as_multiplied(x, dtype), weight, added)
            assert error(ops.linear(x, packed, added), want) <= 1e-5, (rows, num_out, num_in)


@every_path
@pytest.mark.parametrize("type", ["F32", "F16", "BF16"])
def test_float_tensors_of_a_gguf_file_are_packed_alike(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    stored = quantized(random, type, 20, 70)
    plain = stored.data.view({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[type])
    x = normal(random, 3, 70)
    assert torch.equal(ops.linear(x, ops.prepare(stored), None), ops.linear(x, ops.prepare(plain), None))


@every_dtype
def test_weights_keep_their_bytes(dtype: torch.dtype) -> None:
    packed = ops_of(INSTRUCTION_SETS[-1]).prepare(torch.ones(64, 96, dtype=dtype))
    assert isinstance(packed, PackedTensor)
    assert packed.data.nbytes == 64 * 96 * dtype.itemsize


@every_dtype
def test_a_row_is_the_same_alone_among_others_and_on_every_vector_path(dtype: torch.dtype, random: Generator) -> None:
    for num_out, num_in in [(70, 768), (21, 67), (1, 31)]:
        weight, x, bias = (
            normal(random, num_out, num_in, dtype=dtype),
            normal(random, 133, num_in),
            normal(random, num_out),
        )
        wholes = []
        for instruction_set in FUSED:
            ops, alone = ops_of(instruction_set), ops_of(instruction_set, num_threads=1)
            packed = ops.prepare(weight)
            whole = ops.linear(x, packed, bias)
            for row in (0, 1, 31, 63, 64, 132):
                assert torch.equal(alone.linear(x[row : row + 1], packed, bias), whole[row : row + 1])
            for count in range(2, 14):
                assert torch.equal(ops.linear(x[30 : 30 + count], packed, bias), whole[30 : 30 + count])
            wholes.append(whole)
        for whole in wholes[1:]:
            assert torch.equal(whole, wholes[0])


def fused_multiply_add(a: float, b: float, c: float) -> float:
    """Rounded once to float32: the products here are exact in float64, and so are the sums of so few bits."""
    return torch.tensor(a * b + c, dtype=torch.float64).float().item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_is_two_chains_over_each_32_columns(dtype: torch.dtype, random: Generator) -> None:
    """The order of operations of the AMX instruction for bfloat16, written out."""
    # Few significant bits, so that float64 holds each product plus sum exactly.
    x = torch.randint(-127, 128, (96,), generator=random).float() / 8
    weight = (
        torch.randint(-127, 128, (96,), generator=random).float() * 2.0 ** torch.randint(-9, 9, (96,), generator=random)
    ).to(dtype)
    total = 0.0
    for first in range(0, 96, 32):
        chains = [0.0, 0.0]
        for column in range(first, first + 32):
            chains[column % 2] = fused_multiply_add(x[column].item(), weight[column].item(), chains[column % 2])
        total = fused_multiply_add(1.0, fused_multiply_add(1.0, chains[0], chains[1]), total)
    for instruction_set in FUSED:
        ops = ops_of(instruction_set)
        assert ops.linear(x[None], ops.prepare(weight[None]), None).item() == total


def at(index: int, value: float, count: int = 64) -> Tensor:
    x = torch.zeros(1, count)
    x[0, index] = value
    return x


@every_path
@every_dtype
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [lambda n: 0, lambda n: 1, lambda n: n - 1], ids=["first", "second", "last"])
def test_what_is_not_a_number_is_told(
    place: Callable[[int], int], value: float, dtype: torch.dtype, instruction_set: str
) -> None:
    ops = ops_of(instruction_set)
    weight = ops.prepare(torch.ones(3, 61, dtype=dtype))
    got = ops.linear(at(place(61), value, 61), weight, None)
    assert torch.equal(got.isnan(), torch.full((1, 3), math.isnan(value)))
    assert math.isnan(value) or torch.equal(got, torch.full((1, 3), value))


@pytest.mark.parametrize("instruction_set", FUSED)
def test_numbers_too_small_to_be_normal_are_zero_to_bf16_weights(instruction_set: str) -> None:
    """As they are to AMX."""
    ops = ops_of(instruction_set)
    weight = ops.prepare(torch.full((2, 64), 2.0**-100).bfloat16())
    assert torch.equal(ops.linear(at(5, 2.0**-26), weight, None), torch.full((1, 2), 2.0**-126))
    assert torch.equal(ops.linear(at(5, 2.0**-27), weight, None), torch.zeros(1, 2))
    tiny = ops.prepare(torch.full((2, 64), 2.0**-127).bfloat16())
    assert torch.equal(ops.linear(at(5, 2.0**20), tiny, None), torch.zeros(1, 2))
    assert torch.tensor(2.0**-127) / 2 > 0, "the caller's own arithmetic keeps them"


@every_path
def test_activations_for_bf16_weights_are_rounded_to_the_nearest_even(instruction_set: str) -> None:
    ops = ops_of(instruction_set)
    halfway = torch.arange(0x3F800000, 0x3F800000 + 64 * 0x4000, 0x4000, dtype=torch.int32).view(torch.float32)
    identity = ops.prepare(torch.eye(64).bfloat16())
    assert torch.equal(ops.linear(halfway[None], identity, None), halfway.bfloat16().float()[None])


def test_wrong_calls_are_refused(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    packed = ops.prepare(normal(random, 8, 64, dtype=torch.bfloat16))
    assert isinstance(packed, PackedTensor)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 96), packed, None)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 64), PackedTensor("F32", packed.data, (8, 64)), None)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 64), PackedTensor("BF16", packed.data, (17, 64)), None)
    assert ops.linear(normal(random, 0, 64), packed, None).shape == (0, 8)
