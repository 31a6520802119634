"""Steps captured on an NVIDIA GPU and launched again as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class GraphCapture:
    """A `Capture` of kernels/ops.py."""

    def __init__(self) -> None:
        self._memory: Any = None  # shared by all captured calls, of which one runs at a time

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        # The outer one leads back to the stream that was current, also where a capture that failed does not.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=self._memory):
            work()
        return graph.replay
