"""Whether the engine can go on after a step that failed as a whole."""

from __future__ import annotations

import torch

# A device that fails so often in a row and for so long is given up, and with it the process: a new one may do better.
MAX_IN_A_ROW = 4
MAX_SECONDS = 10.0


class StepFailures:
    def __init__(self) -> None:
        self._num_in_a_row = 0
        self._since = 0.0

    def succeeded(self) -> None:
        self._num_in_a_row = 0

    def may_go_on(self, error: Exception, now: float) -> bool:
        """Called for each failure. An accelerator's own errors are for good: all that is asked of it later fails too."""
        if self._num_in_a_row == 0:
            self._since = now
        self._num_in_a_row += 1
        if isinstance(error, torch.AcceleratorError):
            return False
        return self._num_in_a_row < MAX_IN_A_ROW or now - self._since < MAX_SECONDS


def what_happened(error: Exception) -> str:
    """For the client of the request that caused it. What an error says may be of other requests, so its kind must do."""
    return f"the engine failed while it computed this request ({type(error).__name__})"
