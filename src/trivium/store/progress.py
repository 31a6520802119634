"""How a pull tells what it is doing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

POLL_SECONDS = 0.2


class PullStage(StrEnum):
    WAITING = "waiting for another process that pulls this model"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    COPYING = "copying"
    CHECKING = "checking"


class PullProgress(Struct, frozen=True):
    stage: PullStage
    what: str  # a file or a package
    done: int = 0  # bytes
    total: int | None = None  # bytes, where known


ProgressCallback = Callable[[PullProgress], None]


def ignore_progress(_: PullProgress) -> None:
    pass


class ByteCount:
    """Adds up the bytes of one stage over its files, and reports them."""

    def __init__(self, stage: PullStage, total: int, progress: ProgressCallback) -> None:
        self._stage = stage
        self._total = total
        self._progress = progress
        self._done = 0

    def of(self, what: str) -> Callable[[int], None]:
        def add(nbytes: int) -> None:
            self._done += nbytes
            self._progress(PullProgress(self._stage, what, self._done, self._total))

        return add


@contextmanager
def watch_growth(directory: Path, what: str, total: int | None, progress: ProgressCallback) -> Iterator[None]:
    """Reports a download that another program writes into `directory`, by how much the directory has grown."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(POLL_SECONDS):
            done = _bytes_under(directory)
            progress(PullProgress(PullStage.DOWNLOADING, what, done if total is None else min(done, total), total))

    progress(PullProgress(PullStage.DOWNLOADING, what, 0, total))
    watcher = threading.Thread(target=watch, name="watch-download", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _bytes_under(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue  # moved or removed by the writer meanwhile
    return total
