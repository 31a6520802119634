"""What becomes of a step that failed as a whole, and of those who had a part in it."""

from __future__ import annotations

import torch

from trivium.platform.known_errors import KnownErrors, Reaction
from trivium.types.errors import DeviceUnfitError

# A device that fails so often in a row and for so long is given up, and with it the process: a new one may do better.
MAX_IN_A_ROW = 4
MAX_SECONDS = 10.0


class StepFailures:
    def __init__(self, known: KnownErrors) -> None:
        self._known = known
        self._num_in_a_row = 0
        self._since = 0.0

    def succeeded(self) -> None:
        self._num_in_a_row = 0

    def react(self, error: Exception, now: float) -> Reaction:
        """Called for each failure. RETRY: the step is computed again; FAIL_REQUEST: those of the step are run again, alone.
        Raises where nothing can be expected of later steps."""
        if self._num_in_a_row == 0:
            self._since = now
        self._num_in_a_row += 1
        # An accelerator's own errors, but for those that the platform knows, are for good: all that is asked later fails too.
        unknown = Reaction.RESTART if isinstance(error, torch.AcceleratorError) else Reaction.FAIL_REQUEST
        reaction, _ = self._known.reaction(error) or (unknown, "")
        if reaction is Reaction.DRAIN:
            raise DeviceUnfitError(self.sentence(error)) from error
        if reaction is Reaction.RESTART or self._is_stuck(now):
            raise error
        return Reaction.RETRY if reaction is Reaction.RETRY else Reaction.FAIL_REQUEST

    def _is_stuck(self, now: float) -> bool:
        return self._num_in_a_row >= MAX_IN_A_ROW and now - self._since >= MAX_SECONDS

    def sentence(self, error: Exception) -> str:
        """What an error says may be of other requests; what the platform says of its kind is not."""
        return (self._known.reaction(error) or (None, ""))[1] or type(error).__name__


def what_happened(sentence: str) -> str:
    """For the client of the request that caused it."""
    return f"the engine failed while it computed this request ({sentence})"
