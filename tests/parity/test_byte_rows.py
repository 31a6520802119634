"""Linear layers on rows of bytes: weights and activations turned alike, whole-number sums over all columns."""

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels import linear
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.ops import Ops
from trivium.kernels.weights import PackedTensor, QuantizedTensor

BLOCK_TYPES = [name for name, type in QUANT_TYPES.items() if type.block_elements > 1]
SHAPES = [
    (1, 9, 64),
    (2, 16, 576),
    (3, 77, 128),
    (8, 33, 1536),
    (13, 130, 192),
    (16, 16, 64),
    (33, 48, 576),
    (70, 40, 64),
]


def packed(ops: Ops, weight: QuantizedTensor) -> PackedTensor:
    assert ops.packing is not None
    return ops.packing.pack_as(weight, ops.packing.rows_type)


def turning() -> Tensor:
    """Signs of 64 columns, then a Hadamard matrix of 64 rows."""
    matrix = torch.ones(1, 1)
    while len(matrix) < 64:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = [(-1.0) ** ((i >> 3) & i & 7).bit_count() for i in range(64)]
    return torch.tensor(signs)[:, None] * matrix


def as_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of the turned rows, and the scale of each."""
    turned = (x.view(len(x), -1, 64) @ turning()).view(x.shape)
    largest = turned.abs().amax(1, keepdim=True)
    # `127 / largest` would be 127 times its inverse, and rounded twice.
    return (turned * (torch.tensor(127.0) / largest)).round(), largest * torch.tensor(0.125 / 127)


def whole_numbers(random: Generator, rows: int, columns: int) -> Tensor:
    """So small that sums of 64 of them are exact in float32, in any order."""
    return torch.randint(-127, 128, (rows, columns), generator=random).float()


def in_blocks(weight: Tensor) -> QuantizedTensor:
    """Q8_0, each block with the scale 1."""
    values = weight.to(torch.int8).view(torch.uint8).view(len(weight), -1, 32)
    one = torch.ones((*values.shape[:2], 1), dtype=torch.float16).view(torch.uint8)
    return QuantizedTensor("Q8_0", torch.cat([one, values], 2).view(len(weight), -1), tuple(weight.shape))


@every_path
def test_it_is_the_product_of_turned_rows_to_the_bit(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for rows, num_out, num_in in SHAPES:
        weight, x = whole_numbers(random, num_out, num_in), whole_numbers(random, rows, num_in)
        bias = whole_numbers(random, 1, num_out)[0]
        (q, scales), (x_q, x_scales) = as_bytes(weight), as_bytes(x)
        sums = (x_q.double() @ q.double().T).float()
        want = sums * (scales.T * x_scales) + bias
        assert torch.equal(ops.linear(x, packed(ops, in_blocks(weight)), bias), want), (rows, num_out, num_in)


@every_path
@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_turning_and_rounding_cost_little(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for scale in (0.01, 6e4, 1e-7):  # usual; near the largest float16; subnormal float16
        weight, x = quantized(random, type, 200, 1024, scale=scale), normal(random, 9, 1024)
        assert error(ops.linear(x, packed(ops, weight), None), linear.reference(x, weight, None)) <= 0.03


@pytest.mark.parametrize("type", BLOCK_TYPES)
def test_a_row_is_the_same_alone_among_others_and_on_every_path(type: str, random: Generator) -> None:
    weight, x, bias = quantized(random, type, 70, 768), normal(random, 133, 768), normal(random, 70)
    wholes = []
    for instruction_set in INSTRUCTION_SETS:
        ops, alone = ops_of(instruction_set), ops_of(instruction_set, num_threads=1)
        rows = packed(ops, weight)
        whole = ops.linear(x, rows, bias)
        for row in (0, 1, 31, 63, 64, 132):
            assert torch.equal(alone.linear(x[row : row + 1], rows, bias), whole[row : row + 1])
        assert torch.equal(ops.linear(x[30:37], rows, bias), whole[30:37])
        wholes.append(whole)
    for whole in wholes[1:]:
        assert torch.equal(whole, wholes[0])


@every_path
def test_a_large_column_does_not_drown_the_others(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    weight, x = quantized(random, "Q4_1", 96, 576), normal(random, 16, 576)
    x[:, 100] *= 100
    want = linear.reference(x, weight, None)
    rounded = (x * (127 / x.abs().amax(1, keepdim=True))).round() * x.abs().amax(1, keepdim=True) / 127
    unturned = error(linear.reference(rounded, weight, None), want)
    assert error(ops.linear(x, packed(ops, weight), None), want) <= unturned / 2


@every_path
def test_weights_on_one_side_of_zero_keep_their_precision(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    weight, x = in_blocks(120 + whole_numbers(random, 32, 256) % 7), normal(random, 64, 256)
    assert error(ops.linear(x, packed(ops, weight), None), linear.reference(x, weight, None)) <= 0.03


@every_path
def test_extreme_rows(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    weight = quantized(random, "Q4_1", 20, 64)
    x = torch.zeros(5, 64)
    x[1] = 1e30
    x[2, 3] = -1e-30
    x[3, 5] = float("nan")
    x[4, 63] = float("inf")
    y = ops.linear(x, packed(ops, weight), None)
    assert torch.equal(y[0], torch.zeros(20))
    assert error(y[1:3], linear.reference(x[1:3], weight, None)) <= 0.05
    assert y[3].isnan().all() and y[4].isnan().all()


def test_wrong_calls_are_refused(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    with pytest.raises(ValueError, match="a multiple of 64 columns, at most 65536, not 96"):
        packed(ops, quantized(random, "Q4_1", 8, 96))
    with pytest.raises(ValueError, match="a matrix can be packed as rows of bytes"):
        packed(ops, quantized(random, "Q4_1", 2, 8, 64))
    rows = packed(ops, quantized(random, "Q4_1", 8, 128))
    with pytest.raises(ValueError, match="96 columns are not whole units"):
        ops.linear(normal(random, 1, 96), rows, None)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 64), rows, None)
    assert ops.linear(normal(random, 0, 128), rows, None).shape == (0, 8)


@pytest.mark.parametrize("columns", [32, 64, 96, 128, 65536, 65600])
def test_what_is_said_to_fit_into_rows_can_be_packed_and_nothing_else(columns: int, random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    assert ops.packing is not None
    weight = quantized(random, "Q4_1", 1, columns)
    if ops.packing.takes_rows_of(columns):
        assert packed(ops, weight).shape == (1, columns)
    else:
        with pytest.raises(ValueError, match=f"not {columns}$"):
            packed(ops, weight)


def test_the_form_is_none_that_weights_are_stored_in(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    rows = packed(ops, quantized(random, "Q4_1", 8, 128))
    with pytest.raises(KeyError):
        QuantizedTensor(rows.type, rows.data, rows.shape)
