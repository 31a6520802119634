"""Linear layers on packed weights: whole-number sums over quantized activations."""

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels import linear
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.quantize import quantized_activations
from trivium.kernels.weights import PackedTensor

BLOCK_TYPES = [name for name, type in QUANT_TYPES.items() if type.block_elements > 1]
# Sums may cancel in a single output; over some, the largest stands for the size of what was summed.
TOLERANCE = 1e-4
K_TYPES = [name for name in BLOCK_TYPES if QUANT_TYPES[name].block_elements == 256]
SHAPES = [(1, 9, 256), (1, 16, 256), (2, 77, 768), (7, 40, 512), (8, 33, 256), (13, 130, 1280), (33, 48, 256)]


def activations(random: Generator, rows: int, columns: int) -> Tensor:
    """Some of whose rows have a value far above most others, for which units of 256 columns take a second digit."""
    x = normal(random, rows, columns)
    for row in range(rows // 3, rows, 3):
        x[row, int(torch.randint(columns, (), generator=random))] = 30.0
    return x


def as_multiplied(x: Tensor, type: str) -> Tensor:
    return quantized_activations(x, QUANT_TYPES[type].block_elements)


@every_path
@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_it_is_the_reference_on_quantized_activations(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for rows, num_out, num_in in SHAPES:
        for scale in (0.01, 6e4, 1e-7):  # usual; near the largest float16; subnormal float16
            weight = quantized(random, type, num_out, num_in, scale=scale)
            x, bias = activations(random, rows, num_in), normal(random, num_out) * scale
            packed = ops.prepare(weight)
            assert isinstance(packed, PackedTensor)
            want = linear.reference(as_multiplied(x, type), weight, bias)
            assert error(ops.linear(x, packed, bias), want) <= TOLERANCE, (rows, num_out, num_in, scale)


@every_path
@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_quantizing_the_activations_costs_little(type: str, instruction_set: str, random: Generator) -> None:
    weight, x = quantized(random, type, 200, 1024), normal(random, 9, 1024)
    ops = ops_of(instruction_set)
    # 8 bits and random signs: errors of 1/240 of a unit's largest value, averaged over 1024 columns.
    assert error(ops.linear(x, ops.prepare(weight), None), linear.reference(x, weight, None)) <= 0.02


@every_path
@pytest.mark.parametrize("type", K_TYPES)
def test_a_value_far_above_the_others_of_its_unit_does_not_cost_them_their_precision(
    type: str, instruction_set: str, random: Generator
) -> None:
    weight, x = quantized(random, type, 200, 1024), normal(random, 40, 1024)
    usual = linear.reference(x, weight, None).abs().max()
    x[:, 77::256] = 100.0
    ops = ops_of(instruction_set)
    for rows in (1, 5, 40):  # one digit would cost a quarter of the others
        got, want = ops.linear(x[:rows], ops.prepare(weight), None), linear.reference(x[:rows], weight, None)
        assert (got - want).abs().max() <= 0.01 * usual


@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_a_row_is_the_same_alone_among_others_and_on_every_vector_path(type: str, random: Generator) -> None:
    weight, x, bias = quantized(random, type, 70, 768), activations(random, 133, 768), normal(random, 70)
    fused = [name for name in INSTRUCTION_SETS if name != "baseline"]  # the baseline rounds products before it adds
    wholes = []
    for instruction_set in fused:
        ops, alone = ops_of(instruction_set), ops_of(instruction_set, num_threads=1)
        packed = ops.prepare(weight)
        whole = ops.linear(x, packed, bias)
        for row in (0, 1, 31, 63, 64, 132):
            assert torch.equal(alone.linear(x[row : row + 1], packed, bias), whole[row : row + 1])
        assert torch.equal(ops.linear(x[30:37], packed, bias), whole[30:37])
        wholes.append(whole)
    for whole in wholes[1:]:
        assert torch.equal(whole, wholes[0])


# Where a block has its values, apart from their scales.
VALUES = {
    "Q8_0": slice(2, 34),
    "Q4_0": slice(2, 18),
    "Q4_1": slice(4, 20),
    "Q5_0": slice(2, 22),
    "Q5_1": slice(4, 24),
    "Q2_K": slice(16, 80),
    "Q3_K": slice(0, 96),
    "Q4_K": slice(16, 144),
    "Q5_K": slice(16, 176),
    "Q6_K": slice(0, 192),
}


@every_path
@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_sums_hold_the_largest_values_of_either_sign(type: str, instruction_set: str, random: Generator) -> None:
    ops, weight = ops_of(instruction_set), quantized(random, type, 35, 512)
    values = weight.data.view(35, -1, QUANT_TYPES[type].block_bytes)[..., VALUES[type]]
    values.copy_(255 * torch.randint(2, values.shape, generator=random))
    values[0], values[1] = 0, 255  # rows whose products all have one sign, with rows of x that do
    x = 1.0 - 2.0 * torch.randint(2, (50, 512), generator=random)
    x[0], x[1] = 1, -1
    for rows in (1, 7, 50):
        want = linear.reference(as_multiplied(x[:rows], type), weight, None)
        assert error(ops.linear(x[:rows], ops.prepare(weight), None), want) <= TOLERANCE, rows


@every_path
@pytest.mark.parametrize("type", ["Q4_1", "Q4_K", "Q6_K"])
def test_extreme_activations(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    weight = quantized(random, type, 20, 256)
    packed = ops.prepare(weight)
    x = torch.zeros(5, 256)
    x[1] = 1e30
    x[2, 3] = -1e-30
    x[3, 5] = float("nan")
    x[4, 63] = float("inf")
    y = ops.linear(x, packed, None)
    assert torch.equal(y[0], torch.zeros(20))
    assert error(y[1:3], linear.reference(as_multiplied(x[1:3], type), weight, None)) <= TOLERANCE
    assert y[3].isnan().all() and y[4].isnan().all()
    many = ops.linear(x.repeat(8, 1), packed, None)  # by tiles, where there are such
    assert torch.equal(many.nan_to_num(), y.repeat(8, 1).nan_to_num())


@every_path
@pytest.mark.parametrize("type", QUANT_TYPES)
def test_a_stack_is_packed_as_its_matrices_are(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    stack = quantized(random, type, 3, 21, 256)
    packed = ops.prepare(stack)
    assert isinstance(packed, PackedTensor) and packed.shape == (3, 21, 256)
    for index in range(3):
        one = ops.prepare(stack[index])
        assert isinstance(one, PackedTensor) and torch.equal(packed.data[index], one.data)


@every_path
def test_vectors_are_left_as_they_are(instruction_set: str, random: Generator) -> None:
    vector = normal(random, 8)
    assert ops_of(instruction_set).prepare(vector) is vector


def test_wrong_calls_are_refused(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    packed = ops.prepare(quantized(random, "Q4_K", 8, 256))
    assert isinstance(packed, PackedTensor)
    with pytest.raises(ValueError, match="64 columns are not whole units"):
        ops.linear(normal(random, 1, 64), packed, None)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 512), packed, None)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 256), PackedTensor("Q4_K", packed.data, (17, 256)), None)
    assert ops.linear(normal(random, 0, 256), packed, None).shape == (0, 8)
