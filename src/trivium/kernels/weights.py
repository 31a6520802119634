"""Weights as a kernel sees them: a plain tensor, or GGUF blocks that are kept quantized in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.formats.quant_types import QUANT_TYPES

FLOAT_TYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight [..., out, in] whose rows are runs of GGUF blocks along `in`."""

    type: str  # a name in QUANT_TYPES
    data: Tensor  # uint8 [..., out, bytes_per_row]
    shape: tuple[int, ...]  # logical: [..., out, in]

    def __post_init__(self) -> None:
        kind = QUANT_TYPES[self.type]
        if self.shape[-1] % kind.block_elements:
            raise ValueError(f"rows of {self.shape[-1]} elements are not whole {self.type} blocks")
        bytes_per_row = self.shape[-1] // kind.block_elements * kind.block_bytes
        if self.data.dtype != torch.uint8 or tuple(self.data.shape) != (*self.shape[:-1], bytes_per_row):
            raise ValueError(
                f"{self.type} of shape {self.shape} needs uint8 data of shape {(*self.shape[:-1], bytes_per_row)},"
                f" got {self.data.dtype} {tuple(self.data.shape)}"
            )

    def __getitem__(self, index: int | slice | Tensor) -> QuantizedTensor:
        """A part along the outermost dimension: one expert, some rows."""
        data = self.data[index]
        return QuantizedTensor(self.type, data, (*data.shape[:-1], self.shape[-1]))


@dataclass(frozen=True)
class PackedTensor:
    """A weight [out, in] as one provider laid it for its own kernels; only that provider can read it."""

    type: str  # a name in QUANT_TYPES, a float type, or one of the provider's own
    data: Tensor
    shape: tuple[int, ...]  # logical: [out, in]


Weight = Tensor | QuantizedTensor  # as it was stored
LinearWeight = Weight | PackedTensor  # as `linear` takes it


def type_of(weight: Weight) -> str:
    """As GGUF spells it."""
    return weight.type if isinstance(weight, QuantizedTensor) else FLOAT_TYPE_NAMES[weight.dtype]


def stored(weight: LinearWeight) -> Weight:
    """Of a weight that was not packed, for readers who know no provider's layout."""
    assert not isinstance(weight, PackedTensor), "only the provider that packed a weight can read it"
    return weight


def distinct_bytes(weights: Iterable[LinearWeight]) -> int:
    """That they take together; what two of them share counts once."""
    tensors = (weight if isinstance(weight, Tensor) else weight.data for weight in weights)
    total, end = 0, 0
    for first, last in sorted(_span(tensor) for tensor in tensors if tensor.numel()):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of its first byte, and of the one behind its last."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.itemsize


@dataclass(frozen=True)
class LinearLayers:
    """Linear layers of one input, side by side."""

    weights: tuple[LinearWeight, ...]  # each [out, in]
    biases: tuple[Tensor | None, ...]  # each [out]
    joined: Tensor | None = None  # [sum of out, in]: all weights as one, where the provider asked for that
    joined_bias: Tensor | None = None
