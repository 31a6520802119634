"""Down the ladder in service: kernels that were caught lying or that raise are left for those of the rung below."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from trivium.engine.plan import Ground
from trivium.engine.rungs import demoted, refuse_below, refuse_by_batch, rung_below
from trivium.execute.shadow import KernelMismatch, Shadow
from trivium.kernels.ops import Ops

log = logging.getLogger(__name__)


class Descent:
    """`used`: the ops that the model calls."""

    def __init__(self, ground: Ground, used: Sequence[str]) -> None:
        self._strict = ground.options.strict
        self._deterministic = ground.options.deterministic
        self._used = used
        self._num_threads = ground.options.num_threads or ground.capabilities.num_threads
        self._demotions = Counter(ground.problems)
        self.shadow = Shadow(
            ground.options.shadow_every, lambda ops: rung_below(ops, self._num_threads), ground.known_errors
        )

    @property
    def demotions(self) -> dict[str, int]:
        """Kernels that were left, at the start or since, by "what: why"."""
        return dict(self._demotions)

    def leave(self, ops: Ops, mismatch: KernelMismatch) -> Ops:
        """The table without what is not to be trusted. Raises ConfigError where the operator wants nothing below its rung,
        or was promised what is left cannot keep."""
        log.error("kernels are left for slower ones, and what they computed is computed again: %s", mismatch)
        self._demotions[str(mismatch)] += 1
        lower = demoted(ops, mismatch.subject, mismatch.why, self._num_threads)
        refuse_below(self._strict, lower, self._used, (str(mismatch),))
        if self._deterministic:
            refuse_by_batch(lower, self._used, (str(mismatch),))
        return lower
