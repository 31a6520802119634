"""A trace of the engine's first steps, by torch's profiler with the activities that the platform tells of."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from trivium.platform.contract import Answer, Profiling
from trivium.types.errors import ConfigError

log = logging.getLogger(__name__)

FOLDER = "profiles"  # in the cache directory


class StepProfile:
    def __init__(self, num_steps: int, told: Answer[Profiling], root: Path) -> None:
        """`num_steps` 0: nothing is traced. Raises ConfigError where the platform tells of nothing that can be."""
        self._num_left = num_steps
        self._path = root / FOLDER / f"steps-{os.getpid()}.json"
        self._profiler: torch.profiler.profile | None = None
        self._activities = activities_of(told) if num_steps else []

    def before_step(self) -> None:
        """Called before each step; after the last that was asked for, the trace is written."""
        if self._num_left == 0:
            if self._profiler is not None:
                self._write(self._profiler)
            return
        if self._profiler is None:
            self._profiler = torch.profiler.profile(activities=self._activities)
            self._profiler.start()
        self._num_left -= 1

    def _write(self, profiler: torch.profiler.profile) -> None:
        self._profiler = None
        try:
            profiler.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            log.error("the trace of the first steps could not be written to %s: %s", self._path, error)
        else:
            log.warning("the trace of the first steps is in %s", self._path)


def activities_of(told: Answer[Profiling]) -> list[ProfilerActivity]:
    names = told.value.activities if told.value is not None else ()
    known = [getattr(ProfilerActivity, name) for name in names if hasattr(ProfilerActivity, name)]
    if not known:
        what = f"{', '.join(names)}, none of which torch has" if names else f"no activities ({told.reason})"
        raise ConfigError(f"profile_steps: the platform tells of {what}: there is nothing to trace")
    return known
