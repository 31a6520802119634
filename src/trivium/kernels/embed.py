"""Rows of an embedding table."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.cases import Case, normal, quantized
from trivium.kernels.dequantize import dequantize
from trivium.kernels.weights import QuantizedTensor, Weight

TOLERANCE = 0.0


def reference(ids: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    """ids int64 [T], weight [V, H] -> [T, H] of `dtype`."""
    rows = weight[ids]
    return dequantize(rows, dtype) if isinstance(rows, QuantizedTensor) else rows.to(dtype)


def cases(random: Generator) -> Iterator[Case]:
    for num_ids in (0, 1, 13):
        ids = torch.randint(50, (num_ids,), generator=random)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            yield Case(f"{dtype} {num_ids}", (ids, normal(random, 50, 37, dtype=dtype), torch.float32))
        for type in QUANT_TYPES:
            yield Case(f"{type} {num_ids}", (ids, quantized(random, type, 50, 512), torch.float32))
