"""Arrays to the device in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SHAPES_ALONE = "meta"  # torch's device of tensors that have no numbers

ALIGNMENT = 128  # bytes; kernels read memory so aligned in wide pieces


def copies_by_itself(device: torch.device) -> bool:
    """From and to pinned memory, while the host goes on."""
    return device.type not in ("cpu", SHAPES_ALONE)


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """The arrays as tensors there, which share one piece of memory. On the CPU they are the arrays themselves."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    ends = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]).tolist()
    staged = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=copies_by_itself(device))
    there = torch.empty(ends[-1], dtype=torch.uint8, device=device)
    bytes_here = staged.numpy()
    tensors = []
    for array, start in zip(arrays, [0, *ends[:-1]], strict=True):
        part = slice(start, start + array.nbytes)
        bytes_here[part] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        dtype = torch.from_numpy(array[:0]).dtype
        tensors.append(there[part].view(dtype).view(array.shape))
    there.copy_(staged, non_blocking=True)
    return tensors
