"""Linear layers on units of bytes: K types rounded to bytes as they are multiplied, whole-number sums over 256 columns."""

from dataclasses import replace

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.kernels import experts, linear
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.dequantize import dequantize
from trivium.kernels.native import UNITS_OF_BYTES
from trivium.kernels.ops import Ops
from trivium.kernels.quantize import quantized_activations
from trivium.kernels.verify import problem_of
from trivium.kernels.weights import PackedTensor, QuantizedTensor

FUSED = [name for name in INSTRUCTION_SETS if name != "baseline"]  # the baseline rounds products before it adds
# Rows that meet bytes as they are made (up to 4), kept bytes by vectors, and by tiles (from 16 on), with some left over.
SHAPES = [
    (1, 9, 256),
    (1, 16, 512),
    (2, 77, 768),
    (4, 40, 512),
    (5, 33, 256),
    (13, 130, 1280),
    (16, 31, 256),
    (49, 48, 512),
]
TOLERANCE = 1e-4  # of sums in float32, as a fraction of the largest

every_type = pytest.mark.parametrize("type", UNITS_OF_BYTES)


def packed(ops: Ops, weight: QuantizedTensor) -> PackedTensor:
    assert ops.packing is not None
    return ops.packing.pack_as(weight, ops.packing.units_types[weight.type])


def weights_in(ops: Ops, units: PackedTensor) -> Tensor:
    """As they are multiplied: columns of the unit matrix are whole numbers, and products with them are exact."""
    columns = units.shape[1]
    return ops.linear(torch.eye(columns), units, None).T


def activations(random: Generator, rows: int, columns: int) -> Tensor:
    """Some of whose rows have a value far above most others, for which units take a second digit."""
    x = normal(random, rows, columns)
    for row in range(rows // 3, rows, 3):
        x[row, int(torch.randint(columns, (), generator=random))] = 30.0
    return x


@every_path
@every_type
def test_weights_are_rounded_to_bytes_of_their_unit(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for scale in (0.01, 6e4, 1e-7):  # usual; near the largest float16; subnormal float16
        weight = quantized(random, type, 40, 768, scale=scale)
        want = dequantize(weight, torch.float32).view(40, -1, 256).double()
        got = weights_in(ops, packed(ops, weight)).view(want.shape).double()
        largest = want.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        off = (got - want) / largest  # a byte's step is 1/126 of the largest that a unit can hold
        assert off.abs().max() <= 0.02
        assert off.square().mean().sqrt() <= 0.005
        assert off.mean().abs() <= 0.0005  # what is dropped is made up for


@every_path
@every_type
def test_it_is_the_product_with_quantized_activations(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for rows, num_out, num_in in SHAPES:
        weight, bias = quantized(random, type, num_out, num_in), normal(random, num_out)
        units, x = packed(ops, weight), activations(random, rows, num_in)
        want = quantized_activations(x, 256).double() @ weights_in(ops, units).double().T + bias
        assert error(ops.linear(x, units, bias), want.float()) <= TOLERANCE, (rows, num_out, num_in)


@every_type
def test_a_row_is_the_same_alone_among_others_and_on_every_path(type: str, random: Generator) -> None:
    weight, x, bias = quantized(random, type, 70, 768), activations(random, 133, 768), normal(random, 70)
    wholes = []
    for instruction_set in FUSED:
        ops, alone = ops_of(instruction_set), ops_of(instruction_set, num_threads=1)
        units = packed(ops, weight)
        whole = ops.linear(x, units, bias)
        for row in (0, 1, 31, 63, 64, 132):
            assert torch.equal(alone.linear(x[row : row + 1], units, bias), whole[row : row + 1])
        for count in (2, 3, 4, 7, 15, 16, 17):
            assert torch.equal(ops.linear(x[30 : 30 + count], units, bias), whole[30 : 30 + count])
        wholes.append(whole)
    for whole in wholes[1:]:
        assert torch.equal(whole, wholes[0])


@every_type
def test_it_is_packed_alike_on_every_path(type: str, random: Generator) -> None:
    weight = quantized(random, type, 33, 512)
    first, *others = (packed(ops_of(name), weight).data for name in INSTRUCTION_SETS)
    assert all(torch.equal(first, other) for other in others)


@every_path
@every_type
def test_sums_hold_the_largest_values_of_either_sign(type: str, instruction_set: str, random: Generator) -> None:
    ops, weight = ops_of(instruction_set), quantized(random, type, 35, 512)
    blocks = weight.data.view(35, 2, -1)
    values = blocks[..., :192] if type == "Q6_K" else blocks[..., 16:]
    values.copy_(255 * torch.randint(2, values.shape, generator=random))
    values[0], values[1] = 0, 255
    units = packed(ops, weight)
    x = 1.0 - 2.0 * torch.randint(2, (50, 512), generator=random)
    x[0], x[1] = 1, -1
    for rows in (1, 7, 50):
        want = x[:rows].double() @ weights_in(ops, units).double().T
        assert error(ops.linear(x[:rows], units, None), want.float()) <= TOLERANCE, rows


@every_path
@every_type
def test_extreme_rows(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    units = packed(ops, quantized(random, type, 20, 256))
    x = torch.zeros(5, 256)
    x[1] = 1e30
    x[2, 3] = -1e-30
    x[3, 5] = float("nan")
    x[4, 63] = float("inf")
    many = ops.linear(x.repeat(8, 1), units, None)
    y = torch.cat([ops.linear(x[row : row + 1], units, None) for row in range(5)])
    assert torch.equal(y[0], torch.zeros(20))
    assert error(y[1:3], x[1:3] @ weights_in(ops, units).T) <= TOLERANCE
    assert y[3].isnan().all() and y[4].isnan().all()
    assert torch.equal(many.nan_to_num(), y.repeat(8, 1).nan_to_num())


@every_path
@every_type
def test_scales_that_are_no_numbers_show_and_those_of_nothing_do_not(
    type: str, instruction_set: str, random: Generator
) -> None:
    ops, weight = ops_of(instruction_set), quantized(random, type, 20, 512)
    at = 208 if type == "Q6_K" else 0
    scales = weight.data.view(20, 2, -1)[..., at : at + 2].view(torch.float16)
    scales[3, 1], scales[4, 0], scales[5] = float("nan"), float("inf"), 0.0
    if type != "Q6_K":
        weight.data.view(20, 2, -1)[5, :, 2:4] = 0  # minima too
    for rows in (1, 40):
        y = ops.linear(normal(random, rows, 512), packed(ops, weight), None)
        assert y[:, 3:5].isnan().all() and not y[:, 5].any() and y[:, 6:].isfinite().all()


@every_path
@every_type
def test_a_stack_is_packed_as_its_matrices_are(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    stack = quantized(random, type, 3, 21, 256)
    units = packed(ops, stack)
    assert units.shape == (3, 21, 256)
    for index in range(3):
        assert torch.equal(units.data[index], packed(ops, stack[index]).data)


@every_path
@every_type
def test_experts_may_be_units(type: str, instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    gate, up, down = (quantized(random, type, 3, *shape) for shape in ((512, 256), (512, 256), (256, 512)))
    x, ids = normal(random, 40, 256), torch.randint(3, (40, 1), generator=random)
    arguments = x, torch.cat([ids, (ids + 1) % 3], 1), torch.rand(40, 2, generator=random)
    got = ops.experts(*arguments, packed(ops, gate), packed(ops, up), packed(ops, down), "silu")
    assert error(got, experts.reference(*arguments, gate, up, down, "silu")) <= 0.05
    assert not ops.fallbacks


@every_type
def test_rounding_weights_costs_little_beside_rounding_activations(type: str, random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    weight, x = quantized(random, type, 200, 1024), normal(random, 64, 1024)
    want = linear.reference(x, weight, None)
    by_blocks, by_units = (ops.linear(x, form, None) - want for form in (ops.prepare(weight), packed(ops, weight)))
    assert by_units.square().mean() <= 2.5 * by_blocks.square().mean()


def test_wrong_calls_are_refused(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    assert ops.packing is not None
    with pytest.raises(ValueError, match="Q4_1 weights cannot be packed as Q4_K_UNITS"):
        ops.packing.pack_as(quantized(random, "Q4_1", 8, 256), "Q4_K_UNITS")
    with pytest.raises(ValueError, match="Q6_K weights cannot be packed as Q4_K_UNITS"):
        ops.packing.pack_as(quantized(random, "Q6_K", 8, 256), "Q4_K_UNITS")
    units = packed(ops, quantized(random, "Q4_K", 8, 512))
    with pytest.raises(ValueError, match="64 columns are not whole units"):
        ops.linear(normal(random, 1, 64), units, None)
    with pytest.raises(ValueError, match="must have shape"):
        ops.linear(normal(random, 1, 256), units, None)
    assert ops.linear(normal(random, 0, 512), units, None).shape == (0, 8)


@pytest.mark.parametrize("form", ["BYTE_ROWS", *UNITS_OF_BYTES.values()])
def test_a_form_that_is_multiplied_wrongly_is_found_before_it_is_used(form: str) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    assert ops.packing is not None and problem_of("linear", ops) is None
    right = ops.packing.pack_as

    def pack_as(weight: QuantizedTensor, type: str) -> PackedTensor:
        packed = right(weight, type)
        return replace(packed, data=packed.data.flip(0)) if type == form else packed

    wrong = replace(ops, packing=replace(ops.packing, pack_as=pack_as))
    problem = problem_of("linear", wrong, seconds=60)
    assert problem is not None and f"as {form}" in problem
