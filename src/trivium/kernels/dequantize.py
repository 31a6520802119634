"""Expands GGUF blocks, in float32 exactly as the format defines them, then rounds to the wanted dtype once.

Each decoder takes blocks [N, block_bytes] uint8 and gives values [N, block_elements] float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.weights import QuantizedTensor

# Each element has several copies on its way, which stay below the CPU platform's large pieces. A device of its own would be
# launched to for every part.
ELEMENTS_AT_ONCE = 1 << 16


def dequantize(q: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """[..., out, in] of `dtype`."""
    type = QUANT_TYPES[q.type]
    blocks, decode = q.data.reshape(-1, type.block_bytes), _DECODERS[q.type]
    if q.data.device.type != "cpu":
        return decode(blocks).to(dtype).reshape(q.shape)
    result = torch.empty((len(blocks), type.block_elements), dtype=dtype)
    step = ELEMENTS_AT_ONCE // type.block_elements
    for first in range(0, len(blocks), step):
        result[first : first + step] = decode(blocks[first : first + step])
    return result.reshape(q.shape)


def _half(two_bytes: Tensor) -> Tensor:
    """[N, 2] bytes of a float16 -> [N, 1] float32."""
    return two_bytes.contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., B] bytes -> [..., 2B]: all low nibbles, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _bits_of_u32(four_bytes: Tensor) -> Tensor:
    """[N, 4] bytes, little endian -> [N, 32] of 0 or 1."""
    shifts = torch.arange(8, dtype=torch.uint8, device=four_bytes.device)
    return ((four_bytes[:, :, None] >> shifts) & 1).flatten(1)


def _shifted(packed: Tensor, shifts: list[int], mask: int) -> Tensor:
    """[..., B] bytes -> [..., len(shifts), B]: the field at each shift, of all bytes."""
    amounts = torch.tensor(shifts, dtype=torch.uint8, device=packed.device)
    return (packed[..., None, :] >> amounts[:, None]) & mask


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q8_0(blocks: Tensor) -> Tensor:
    """d f16, 32 x int8."""
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _half(blocks[:, :2])


def _q4_0(blocks: Tensor) -> Tensor:
    """d f16, 32 nibbles around 8."""
    return (_nibbles(blocks[:, 2:]).float() - 8) * _half(blocks[:, :2])


def _q4_1(blocks: Tensor) -> Tensor:
    """d f16, minimum f16, 32 nibbles."""
    return _nibbles(blocks[:, 4:]).float() * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _q5_0(blocks: Tensor) -> Tensor:
    """d f16, 32 fifth bits, 32 nibbles; values around 16."""
    values = _nibbles(blocks[:, 6:]) | (_bits_of_u32(blocks[:, 2:6]) << 4)
    return (values.float() - 16) * _half(blocks[:, :2])


def _q5_1(blocks: Tensor) -> Tensor:
    """d f16, minimum f16, 32 fifth bits, 32 nibbles."""
    values = _nibbles(blocks[:, 8:]) | (_bits_of_u32(blocks[:, 4:8]) << 4)
    return values.float() * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _q2_k(blocks: Tensor) -> Tensor:
    """16 x (scale, minimum) nibbles, 256 x 2 bits, d f16, dmin f16; sub-blocks of 16."""
    scales = blocks[:, :16]
    d = _half(blocks[:, 80:82]) * (scales & 15).float()
    minimum = _half(blocks[:, 82:84]) * (scales >> 4).float()
    values = _shifted(blocks[:, 16:80].reshape(-1, 2, 32), [0, 2, 4, 6], 3).reshape(-1, 16, 16).float()
    return (d[..., None] * values - minimum[..., None]).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    """256 third bits, 256 x 2 bits, 16 x 6-bit scales around 32, d f16; sub-blocks of 16.

    A value whose third bit is clear is 4 lower.
    """
    packed = blocks[:, 96:108]
    scales = _nibbles(packed[:, :8]) | (_shifted(packed[:, 8:], [0, 2, 4, 6], 3).flatten(1) << 4)
    d = _half(blocks[:, 108:110]) * (scales.float() - 32)
    low = _shifted(blocks[:, 32:96].reshape(-1, 2, 32), [0, 2, 4, 6], 3).reshape(-1, 16, 16).float()
    third_bits = _shifted(blocks[:, :32], list(range(8)), 1).reshape(-1, 16, 16).float()
    return (d[..., None] * (low + 4 * third_bits - 4)).flatten(1)


def _k_scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 12] bytes -> 8 six-bit scales and 8 six-bit minima, as Q4_K and Q5_K pack them.

    The first four of each lie in the low 6 bits of bytes 0-3 and 4-7; of the last four, the low nibbles lie in bytes
    8-11 (scale low, minimum high) and the two high bits in the tops of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=1)
    minima = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=1)
    return scales.float(), minima.float()


def _q4_k(blocks: Tensor) -> Tensor:
    """d f16, dmin f16, 12 bytes of scales and minima, 256 nibbles; sub-blocks of 32."""
    scales, minima = _k_scales_and_minima(blocks[:, 4:16])
    d, minimum = _half(blocks[:, :2]) * scales, _half(blocks[:, 2:4]) * minima
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).float()
    return (d[..., None] * values - minimum[..., None]).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    """d f16, dmin f16, 12 bytes of scales and minima, 256 fifth bits, 256 nibbles; sub-blocks of 32."""
    scales, minima = _k_scales_and_minima(blocks[:, 4:16])
    d, minimum = _half(blocks[:, :2]) * scales, _half(blocks[:, 2:4]) * minima
    fifth_bits = _shifted(blocks[:, 16:48], list(range(8)), 1)
    values = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | (fifth_bits << 4)
    return (d[..., None] * values.float() - minimum[..., None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """256 nibbles, 256 x 2 high bits, 16 x int8 scales, d f16; values around 32, sub-blocks of 16."""
    d = _half(blocks[:, 208:210]) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    high = _shifted(blocks[:, 128:192].reshape(-1, 2, 32), [0, 2, 4, 6], 3).reshape(-1, 16, 16)
    return (d[..., None] * ((low | (high << 4)).float() - 32)).flatten(1)


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
