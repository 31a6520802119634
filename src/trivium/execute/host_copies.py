"""What a step tells the host. Copies are asked for while the step is launched, and are there when it has run."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopies:
    """Of tensors of one step. On the CPU a tensor is its own copy, and nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_here = device.type == "cpu"
        self._all_there: torch.Event | None = None

    def take(self, tensor: Tensor) -> Tensor:
        """The tensor's copy, to be read after `wait`."""
        if self._is_here:
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return copy.copy_(tensor, non_blocking=True)

    def close(self) -> None:
        """No more are asked for: later steps are not waited for."""
        if not self._is_here:
            self._all_there = torch.Event(self._device)
            self._all_there.record()

    def wait(self) -> None:
        if self._all_there is not None:
            self._all_there.synchronize()
