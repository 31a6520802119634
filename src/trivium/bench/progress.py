"""How far a run is, on standard error: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from trivium.bench.figures import NS_PER_MS, percentile
from trivium.bench.samples import RequestSample

TERMINAL_SECONDS = 0.2
LOG_SECONDS = 10.0
RECENT = 100  # requests whose times are shown


class Progress:
    """A watcher of loads."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._shown = self._began
        self._sent = self._ended = self._failed = self._tokens = 0
        self._ttfts: list[int] = []

    def sent(self) -> None:
        self._sent += 1
        self._show_sometimes()

    def ended(self, sample: RequestSample) -> None:
        self._ended += 1
        self._failed += not sample.complete
        self._tokens += sample.num_output_tokens
        if sample.complete:
            self._ttfts = [*self._ttfts[1 - RECENT :], sample.ttft_ns]
        self._show_sometimes()

    def close(self) -> None:
        self._show(last=True)

    def line(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        parts = [
            f"{self._label}: {self._ended}/{self._total} done",
            f"{self._sent - self._ended} in flight",
            f"{self._failed} failed",
            f"{self._tokens / seconds:.0f} tok/s",
        ]
        if self._ttfts:
            parts.append(f"TTFT p50 {percentile(sorted(self._ttfts), 0.5) / NS_PER_MS:.0f} ms")
        return ", ".join([*parts, f"{seconds:.0f} s"])

    def _show_sometimes(self) -> None:
        if time.monotonic() - self._shown >= (TERMINAL_SECONDS if self._terminal else LOG_SECONDS):
            self._show(last=False)

    def _show(self, last: bool) -> None:
        self._shown = time.monotonic()
        if self._terminal:
            print(f"\r\033[K{self.line()}", end="\n" if last else "", file=self._stream, flush=True)
        else:
            print(self.line(), file=self._stream, flush=True)
