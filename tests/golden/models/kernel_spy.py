"""Which kernels really ran: Python's own account of the calls into `trivium.kernels`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import trivium.kernels

KERNELS = str(Path(trivium.kernels.__file__).parent)


class KernelSpy:
    """`called` holds (file, function) of each function of a kernel that was called inside the `with`."""

    def __init__(self) -> None:
        self.called: set[tuple[str, str]] = set()

    def __enter__(self) -> KernelSpy:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(KERNELS):
            self.called.add((Path(frame.f_code.co_filename).stem, frame.f_code.co_name))

    @property
    def references(self) -> set[str]:
        return {file for file, function in self.called if function == "reference"}

    @property
    def native(self) -> set[str]:
        return {function for file, function in self.called if file == "native"}
