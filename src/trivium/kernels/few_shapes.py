"""Products by a library that compiles code for every shape it meets, and keeps it: tokens are cut and filled up to a few numbers
of them, so that it keeps little. Of steps of all sizes it would keep hundreds of MiB."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

SIZES = (1, 4, 16, 64, 256)  # tokens; a step is cut into pieces of the last
# Of one shape, measured, 300 to 576 KiB: oneDNN of torch 2.13 on AVX-512, matrices of 10^5 to 10^7 elements.
SHAPE_BYTES = 416 << 10
LIBRARY_BYTES = 6 << 20  # its code, once it is used
FLOAT32_BYTES = 6 << 20  # kept by each thread that multiplied large matrices of float32, measured: MKL of torch 2.13


@cache
def compiles_each_shape(dtype: torch.dtype, device: str) -> bool:
    """`device`: torch's type of it. oneDNN does so for what this CPU has instructions for; float32 is another library's."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    match dtype:
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        case _:
            return False


def products_bytes(num_matrices: int, dtype: torch.dtype, device: str, num_threads: int) -> int:
    """That libraries keep for torch's products with weights of so many shapes, at most."""
    if compiles_each_shape(dtype, device):
        return LIBRARY_BYTES + num_matrices * len(SIZES) * SHAPE_BYTES
    return num_threads * FLOAT32_BYTES if device == "cpu" and dtype == torch.float32 else 0


def linear_in_few_shapes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in], weight [out, in], bias [out] -> [T, out]."""
    result = torch.empty((len(x), len(weight)), dtype=x.dtype)
    for first in range(0, len(x), SIZES[-1]):
        tokens = x[first : first + SIZES[-1]]
        size = next(size for size in SIZES if size >= len(tokens))
        filled = tokens if size == len(tokens) else F.pad(tokens, (0, 0, 0, size - len(tokens)))
        result[first : first + len(tokens)] = F.linear(filled, weight, bias)[: len(tokens)]
    return result
