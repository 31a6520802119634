"""A pull's progress in the terminal: a bar for each stage, or a line for each where nobody watches."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from trivium.store.progress import PullProgress, PullStage

if TYPE_CHECKING:
    from tqdm import tqdm


class PullBar:
    """`with PullBar() as bar: store.pull(…, progress=bar)`"""

    def __init__(self) -> None:
        self._stage: PullStage | None = None
        self._bar: tqdm | None = None

    def __enter__(self) -> PullBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, progress: PullProgress) -> None:
        if progress.stage is not self._stage:
            self._close()
            self._stage = progress.stage
            self._open(progress)
        if self._bar is not None:
            self._bar.total = progress.total
            self._bar.update(progress.done - self._bar.n)

    def _open(self, progress: PullProgress) -> None:
        label = f"{progress.stage} {progress.what}"
        if sys.stderr.isatty() and progress.stage is not PullStage.WAITING:
            from tqdm import tqdm

            self._bar = tqdm(desc=label, total=progress.total, unit="B", unit_scale=True, unit_divisor=1024)
        else:
            print(label, file=sys.stderr, flush=True)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
