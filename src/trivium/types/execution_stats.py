"""What the device side has counted since its start."""

from __future__ import annotations

from msgspec import Struct


class ExecutionStats(Struct, frozen=True):
    replayed_steps: int = 0  # computed by a graph
    eager_steps: dict[str, int] = {}  # computed op by op, by the reason
    demotions: dict[str, int] = {}  # kernels that were left for slower ones, by "what: why"
    op_fallbacks: dict[str, int] = {}  # calls that a provider handed to the reference, by op and reason
