"""Linear layers on short bfloat16: what bfloat16 gives, to the bit, on every path."""

from dataclasses import replace

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.kernels import experts
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.ops import DoesNotFit, Ops
from trivium.kernels.weights import PackedTensor, QuantizedTensor

# Rows that meet slices one tile at a time (up to 3), two at a time, in several passes, and by tiles (from 8 on).
SHAPES = [
    (1, 1, 1),
    (1, 40, 96),
    (2, 33, 70),
    (3, 16, 576),
    (4, 65, 33),
    (7, 48, 1030),
    (8, 9, 8192),
    (33, 130, 256),
    (259, 40, 320),
]


def shortened(ops: Ops, weight: Tensor | QuantizedTensor) -> PackedTensor:
    assert ops.packing is not None
    return ops.packing.pack_as(weight, ops.packing.short_type)


def with_all_kinds_of_numbers(weight: Tensor) -> Tensor:
    """Far smaller and larger ones than the others, of either sign, zeros and what is no number, in some places."""
    rare = torch.tensor([0.0, -0.0, 1e-30, -1e-38, 1e-40, 3e38, -1e10])
    flat = weight.view(-1)
    flat[:: max(1, len(flat) // 7)][: len(rare)] = rare[: len(flat[:: max(1, len(flat) // 7)])].to(weight.dtype)
    return weight


@every_path
def test_it_is_bfloat16_to_the_bit(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    for rows, num_out, num_in in SHAPES:
        x, bias = normal(random, rows, num_in), normal(random, num_out)
        weight = with_all_kinds_of_numbers(normal(random, num_out, num_in, dtype=torch.bfloat16))
        short = shortened(ops, weight)
        assert short.shape == weight.shape
        for added in (bias, None):
            want = ops.linear(x, ops.prepare(weight), added)
            assert torch.equal(ops.linear(x, short, added), want), (rows, num_out, num_in)


@every_path
def test_every_bit_of_every_bfloat16_is_kept(instruction_set: str) -> None:
    """Sixteen exponents at a time, as many as a slice has numbers for: a product with the unit matrix is the weight."""
    ops = ops_of(instruction_set)
    for first in range(0, 0x8000, 0x800):  # numbers of sixteen exponents, positive and then negative
        bits = torch.arange(first, first + 0x800).view(64, 32)
        weight = torch.cat([bits, bits - 0x8000]).to(torch.int16).view(torch.bfloat16)
        short = shortened(ops, weight)
        rows = weight.isfinite().all(1)  # of one with an infinity products with 0 are no numbers
        want = torch.where(weight.float().abs() >= 2.0**-126, weight.float(), 0.0)
        assert torch.equal(ops.linear(torch.eye(32), short, None).T[rows], want[rows])


@every_path
def test_it_takes_about_three_quarters_of_the_bytes(instruction_set: str, random: Generator) -> None:
    weight = normal(random, 256, 2048, dtype=torch.bfloat16)
    assert shortened(ops_of(instruction_set), weight).data.nbytes <= 0.765 * weight.nbytes


def test_it_is_packed_alike_on_every_path(random: Generator) -> None:
    weight = with_all_kinds_of_numbers(normal(random, 33, 70, dtype=torch.bfloat16))
    first, *others = (shortened(ops_of(name), weight).data for name in INSTRUCTION_SETS)
    assert all(torch.equal(first, other) for other in others)


def test_a_row_is_the_same_alone_among_others_and_whichever_part_of_the_weight_comes_first(random: Generator) -> None:
    weight, x = normal(random, 70, 768, dtype=torch.bfloat16), normal(random, 300, 768)
    for instruction_set in INSTRUCTION_SETS:
        ops, alone = ops_of(instruction_set), ops_of(instruction_set, num_threads=1)
        short = shortened(ops, weight)
        whole = ops.linear(x, short, None)
        for row in (0, 1, 255, 256, 299):
            assert torch.equal(alone.linear(x[row : row + 1], short, None), whole[row : row + 1])
        for count in range(2, 14):
            assert torch.equal(ops.linear(x[30 : 30 + count], short, None), whole[30 : 30 + count])


@every_path
def test_as_many_exceptions_as_there_is_room_for_are_kept(instruction_set: str, random: Generator) -> None:
    """One for each slice of 16 x 32 weights and fifteen more, wherever they are; with another the weight does not fit."""
    ops = ops_of(instruction_set)
    weight = torch.ones(16, 256).bfloat16()
    # Seven exponents more, so that the table of every slice is full, and eight weights of each of those.
    weight.view(16, 8, 32)[:7, :, :8] = (4.0 ** torch.arange(1, 8)).bfloat16().view(7, 1, 1)
    places = torch.randperm(9 * 8, generator=random)[: 8 + 15]
    weight.view(16, 8, 32)[7 + places // 8, places % 8, 31] = 1e-20
    x = normal(random, 3, 256)
    assert torch.equal(ops.linear(x, shortened(ops, weight), None), ops.linear(x, ops.prepare(weight), None))
    weight[15, 0] = -1e-20
    with pytest.raises(DoesNotFit, match=r"shape \(16, 256\) has too many exponents"):
        shortened(ops, weight)


@every_path
def test_bytes_that_nobody_packed_are_read_within_their_tiles(instruction_set: str, random: Generator) -> None:
    """Whatever lies behind them: zeros are exceptions at the first place, without an end."""
    ops, x = ops_of(instruction_set), normal(random, 9, 320)
    short = shortened(ops, normal(random, 48, 320, dtype=torch.bfloat16))
    nbytes = short.data.nbytes
    for filled in (torch.zeros(nbytes), torch.full((nbytes,), 255), torch.randint(256, (nbytes,), generator=random)):
        results = []
        for behind in (0, 0x7F):  # as an exception, an infinity
            memory = torch.full((nbytes // 4 + 1024,), behind, dtype=torch.int32).view(torch.uint8)
            memory[:nbytes] = filled
            held = replace(short, data=memory[:nbytes].view(short.data.shape))
            results.append([ops.linear(x[:rows], held, None).nan_to_num() for rows in (1, 9)])
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@every_path
def test_bfloat16_of_a_gguf_file_is_packed_alike(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    stored = quantized(random, "BF16", 20, 70, scale=0.01)
    plain = stored.data.view(torch.bfloat16)
    assert torch.equal(shortened(ops, stored).data, shortened(ops, plain).data)


@every_path
def test_experts_may_be_short(instruction_set: str, random: Generator) -> None:
    ops = ops_of(instruction_set)
    gate, up, down = (normal(random, 3, *shape, dtype=torch.bfloat16) for shape in ((96, 64), (96, 64), (64, 96)))
    x, ids = normal(random, 40, 64), torch.randint(3, (40, 1), generator=random)
    arguments = x, torch.cat([ids, (ids + 1) % 3], 1), torch.rand(40, 2, generator=random)
    got = ops.experts(*arguments, *(shortened(ops, weight) for weight in (gate, up, down)), "silu")
    assert torch.equal(got, ops.experts(*arguments, *(ops.prepare(weight) for weight in (gate, up, down)), "silu"))
    assert error(got, experts.reference(*arguments, gate, up, down, "silu")) <= 0.02
    assert not ops.fallbacks


def test_other_types_are_refused(random: Generator) -> None:
    ops = ops_of(INSTRUCTION_SETS[-1])
    with pytest.raises(ValueError, match="F16 weights cannot be packed as SHORT_BF16"):
        shortened(ops, normal(random, 8, 64, dtype=torch.float16))
    with pytest.raises(ValueError, match="Q4_1 weights cannot be packed as SHORT_BF16"):
        shortened(ops, quantized(random, "Q4_1", 8, 64))
