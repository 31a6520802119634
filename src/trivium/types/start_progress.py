"""How far an engine has come while it starts, so that a long start does not look like a hang; and where its time went."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class StartStage(StrEnum):
    IMPORTING = "importing libraries"
    PLANNING = "trying kernels and planning memory"
    DEVICE = "taking the device"
    WEIGHTS = "reading weights"
    CACHE = "making the cache"
    RECORDING = "recording steps"
    WARM_UP = "first steps of every kind"


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


class StagePassed(Struct, frozen=True):
    stage: StartStage
    seconds: float


class StartClock:
    """Passes on what is told, and knows how long each stage took; the last ends when it is asked."""

    def __init__(self, tell: TellProgress, now: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._now = now
        self._begun: list[tuple[StartStage, float]] = []

    def __call__(self, progress: StartProgress) -> None:
        if not self._begun or self._begun[-1][0] is not progress.stage:
            self._begun.append((progress.stage, self._now()))
        self._tell(progress)

    def passed(self) -> tuple[StagePassed, ...]:
        ends = [begun for _, begun in self._begun[1:]] + [self._now()]
        return tuple(StagePassed(stage, end - begun) for (stage, begun), end in zip(self._begun, ends, strict=True))

    def __str__(self) -> str:
        return ", ".join(f"{passed.stage} {passed.seconds:.2f} s" for passed in self.passed())
