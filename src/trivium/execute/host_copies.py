"""What a step tells the host. Copies are asked for while the step is launched, and are there when it has run."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.execute.send import SHAPES_ALONE, copies_by_itself


class HostCopies:
    """Of tensors of one step. On the CPU a tensor is its own copy, and nothing waits; one without numbers is copied as
    zeros."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits = copies_by_itself(device)
        self._all_there: torch.Event | None = None

    def take(self, tensor: Tensor) -> Tensor:
        """The tensor's copy, to be read after `wait`."""
        if not self._waits:
            return torch.zeros_like(tensor, device="cpu") if tensor.device.type == SHAPES_ALONE else tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return copy.copy_(tensor, non_blocking=True)

    def close(self) -> None:
        """No more are asked for: later steps are not waited for."""
        if self._waits:
            self._all_there = torch.Event(self._device)
            self._all_there.record()

    def wait(self) -> None:
        if self._all_there is not None:
            self._all_there.synchronize()
