"""How far an engine has come while it starts, so that a long start does not look like a hang."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class StartStage(StrEnum):
    IMPORTING = "importing libraries"
    PLANNING = "trying kernels and planning memory"
    WEIGHTS = "reading weights"
    RUNNER = "making the cache and recording steps"
    WARM_UP = "compiling kernels"


class StartProgress(Struct, frozen=True):
    stage: StartStage
    done: int = 0  # bytes; both 0 in stages that are not counted
    total: int = 0

    def __str__(self) -> str:
        if not self.total:
            return self.stage
        return f"{self.stage}: {self.done / 1e9:.2f} of {self.total / 1e9:.2f} GB"


TellProgress = Callable[[StartProgress], None]


def tell_nobody(progress: StartProgress) -> None:
    pass
