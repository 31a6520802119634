"""Now and then a step's ops are computed again on the rung below, and a replayed step op by op: what differs is named.

The step is first run op by op, one call of each op on both rungs, on the same inputs; then as always, over the same slots of
the cache, so that what the first run wrote there is written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from trivium.execute.batch import Batch
from trivium.kernels.ops import Ops
from trivium.kernels.verify import CAPTURED, RECORDED, difference
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.types.step import RowWork

MOST_TOKENS = 64  # of a step that is looked at: the rung below may be slow

# A fraction of the largest number. Rungs may round the inputs of products to 8 bits, the others compute alike.
TOLERANCE = {"linear": 0.03, "experts": 0.03, "paged_attention": 0.03}
TOLERANCE_OF_OTHERS = 1e-3
# Of whole steps. A replay may have been captured for more rows, whose products are summed in another order; what is wrong
# there is wrong by far more.
TOLERANCE_OF_REPLAYS = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.1}
COMPARED = ("linear", "embed", "rms_norm", "rotary", "gated", "paged_attention", "experts")


class KernelMismatch(Exception):
    """What is not to be trusted any more, and why."""

    def __init__(self, subject: str, why: str) -> None:
        super().__init__(f"{subject}: {why}")
        self.subject = subject
        self.why = why


class Shadow:
    """`every`: steps from one look to the next; 0: none is ever looked at. `find_below`: the rung below a table of ops, which
    reads the same weights and caches, or None where there is none."""

    def __init__(self, every: int, find_below: Callable[[Ops], Ops | None]) -> None:
        self._every = every
        self._find_below = find_below
        self._below: tuple[Ops, Ops | None] | None = None  # the table that it was found for, and what was found
        self._since = 0  # steps since the last look
        self._num_looks = 0
        self._num_calls: Counter[str] = Counter()  # of each op in the last step that was looked at

    def is_due(self, work: Sequence[RowWork]) -> bool:
        """Called once for each step."""
        self._since += 1
        if not self._every or self._since < self._every or sum(item.count for item in work) > MOST_TOKENS:
            return False
        self._since = 0
        return True

    def hidden(self, model: Decoder, kv: KVCache, batch: Batch) -> Tensor:
        """The batch's hidden states, op by op. Raises KernelMismatch where one call of an op differs below."""
        hidden = self._op_by_op(model, kv, batch, all_calls=False)
        if not bool(hidden.isfinite().all()):
            self._op_by_op(model, kv, batch, all_calls=True)  # the call that was wrong may not be the one looked at
        return hidden

    def hold(
        self, replayed: Tensor, computed: Tensor, model: Decoder, kv: KVCache, batch: Batch, is_captured: bool
    ) -> None:
        """One step's results, as a graph gave them and op by op. Raises KernelMismatch if they differ: of an op, where one
        is to blame, and else of the replay."""
        tolerance = TOLERANCE_OF_REPLAYS[str(model.dtype).removeprefix("torch.")]
        if (why := difference(replayed, computed, tolerance)) is not None:
            self._op_by_op(model, kv, batch, all_calls=True)
            raise KernelMismatch(CAPTURED if is_captured else RECORDED, f"in service: {why}")

    def _op_by_op(self, model: Decoder, kv: KVCache, batch: Batch, all_calls: bool) -> Tensor:
        rotations = model.rotations(batch.positions, batch.lengths)
        return model.through_layers(batch.tokens, rotations, batch.attention, kv, self._comparing(model.ops, all_calls))

    def _comparing(self, ops: Ops, all_calls: bool) -> Ops:
        """The same ops, of which one call each, or all, are held against the rung below."""
        if self._below is None or self._below[0] is not ops:
            self._below = (ops, self._find_below(ops))
        below = self._below[1]
        if below is None:
            return ops
        calls, before = Counter[str](), self._num_calls
        self._num_calls = calls
        self._num_looks += 1

        def compared(op: str) -> Callable[..., Any]:
            run, run_below = getattr(ops, op), getattr(below, op)
            looked_at = self._num_looks % max(1, before[op])

            def both(*arguments: Any) -> Any:
                calls[op] += 1
                result = run(*arguments)
                if all_calls or calls[op] - 1 == looked_at:
                    _compare(op, result, run_below(*arguments))
                return result

            return both

        changes: dict[str, Any] = {op: compared(op) for op in COMPARED}
        return replace(ops, **changes)


def _compare(op: str, result: Any, right: Any) -> None:
    pairs = zip(result, right, strict=True) if isinstance(result, tuple) else [(result, right)]
    for given, wanted in pairs:
        if (why := difference(given, wanted, TOLERANCE.get(op, TOLERANCE_OF_OTHERS))) is not None:
            raise KernelMismatch(op, f"in service: {why}")
