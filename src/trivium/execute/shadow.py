"""Now and then a step's ops are computed again on the rung below, and a replayed step op by op: what differs is named.

The step, or its first tokens if it has many, is first run op by op, one call of each op on both rungs, on the same inputs;
then as always, over the same slots of the cache, so that what the first run wrote there is written again. A step that raised
is run so too: the op that raises where the one on the rung below does not is named.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from trivium.execute.batch import Batch
from trivium.kernels.ops import OP_NAMES, Ops
from trivium.kernels.verify import CAPTURED, RECORDED, difference
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.platform.known_errors import KnownErrors
from trivium.types.step import RowWork

log = logging.getLogger(__name__)

MOST_TOKENS = 64  # that are looked at: the rung below may be slow

# A fraction of the largest number. Rungs may round the inputs of products to 8 bits, the others compute alike.
TOLERANCE = {"linear": 0.03, "experts": 0.03, "paged_attention": 0.03, "text_attention": 0.03}
TOLERANCE_OF_OTHERS = 1e-3
# Of whole steps. A replay may have been captured for more rows, whose products are summed in another order; what is wrong
# there is wrong by far more.
TOLERANCE_OF_REPLAYS = {"float32": 0.01, "bfloat16": 0.1, "float16": 0.1}
COMPARED = (
    "linear",
    "embed",
    "rms_norm",
    "rotary",
    "gated",
    "paged_attention",
    "experts",
    "layer_norm",
    "activate",
    "text_attention",
)
# No op is to blame for these: another would want the memory too, and a device that failed does nothing more.
NO_OPS_FAULT = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)


class KernelMismatch(Exception):
    """What is not to be trusted any more, and why."""

    def __init__(self, subject: str, why: str) -> None:
        super().__init__(f"{subject}: {why}")
        self.subject = subject
        self.why = why


class Shadow:
    """`every`: steps from one look to the next; 0: none is ever looked at. `find_below`: the rung below a table of ops, which
    reads the same weights and caches, or None where there is none. `known_errors`: the platform's own."""

    def __init__(
        self, every: int, find_below: Callable[[Ops], Ops | None], known_errors: KnownErrors | None = None
    ) -> None:
        self._every = every
        self._find_below = find_below
        self._known_errors = known_errors or KnownErrors()
        self._below: tuple[Ops, Ops | None] | None = None  # the table that it was found for, and what was found
        self._since = 0  # steps since the last look
        self._num_looks = 0
        self._num_calls: Counter[str] = Counter()  # of each op in the last step that was looked at

    def is_due(self) -> bool:
        """Called once for each step."""
        self._since += 1
        if not self._every or self._since < self._every:
            return False
        self._since = 0
        return True

    def hidden(self, model: Decoder, kv: KVCache, batch: Batch) -> Tensor:
        """The batch's hidden states, op by op. Raises KernelMismatch where one call of an op differs below."""
        return self.look(model.ops, lambda ops: _op_by_op(model, kv, batch, ops))

    def look(self, ops: Ops, compute: Callable[[Ops], Tensor]) -> Tensor:
        """What `compute` gives with these ops. Raises KernelMismatch where one call of an op differs below."""
        computed = compute(self._comparing(ops, all_calls=False))
        if not bool(computed.isfinite().all()):
            compute(self._comparing(ops, all_calls=True))  # the call that was wrong may not be the one looked at
        return computed

    def hold(
        self, replayed: Tensor, computed: Tensor, model: Decoder, kv: KVCache, batch: Batch, is_captured: bool
    ) -> None:
        """One step's results, as a graph gave them and op by op. Raises KernelMismatch if they differ: of an op, where one
        is to blame, and else of the replay."""
        tolerance = TOLERANCE_OF_REPLAYS[str(model.dtype).removeprefix("torch.")]
        if (why := difference(replayed, computed, tolerance)) is not None:
            _op_by_op(model, kv, batch, self._comparing(model.ops, all_calls=True))
            raise KernelMismatch(CAPTURED if is_captured else RECORDED, f"in service: {why}")

    def is_ops_fault(self, error: Exception) -> bool:
        """Whether another op in the place of the one that raised may do better."""
        return not isinstance(error, NO_OPS_FAULT) and self._known_errors.is_ops_fault(error)

    def blaming(self, ops: Ops) -> Ops:
        """The same ops, none of them in a graph; one that raises where the one below does not raises KernelMismatch."""
        eager, below = replace(ops, record=None, capture=None), self._rung_below(ops)
        if below is None:
            return eager

        def blamed(op: str) -> Callable[..., Any]:
            run, run_below = getattr(ops, op), getattr(below, op)

            def tried(*arguments: Any) -> Any:
                try:
                    return run(*arguments)
                except Exception as error:
                    if not self.is_ops_fault(error):
                        raise
                    run_below(*arguments)
                    raise KernelMismatch(op, f"in service: {what_was_raised(error)}") from error

            return tried

        changes: dict[str, Any] = {op: blamed(op) for op in OP_NAMES}
        return replace(eager, **changes)

    def _rung_below(self, ops: Ops) -> Ops | None:
        if self._below is None or self._below[0] is not ops:
            self._below = (ops, self._find_below(ops))
        return self._below[1]

    def _comparing(self, ops: Ops, all_calls: bool) -> Ops:
        """The same ops, of which one call each, or all, are held against the rung below."""
        below = self._rung_below(ops)
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
                    try:
                        right = run_below(*arguments)
                    except Exception:  # what is not used has not failed anybody
                        log.exception("%s could not be compared with the rung below", op)
                    else:
                        _compare(op, result, right)
                return result

            return both

        changes: dict[str, Any] = {op: compared(op) for op in COMPARED}
        return replace(ops, **changes)


def first_tokens(work: Sequence[RowWork]) -> list[RowWork]:
    """So much of a step's work as is looked at."""
    taken, room = list[RowWork](), MOST_TOKENS
    for item in work:
        if item.count > room:
            return [*taken, structs.replace(item, count=room, samples=False)] if room else taken
        taken.append(item)
        room -= item.count
    return taken


def what_was_raised(error: Exception) -> str:
    return f"it raised {type(error).__name__}: {error}"


def _op_by_op(model: Decoder, kv: KVCache, batch: Batch, ops: Ops) -> Tensor:
    rotations = model.rotations(batch.positions, batch.lengths)
    return model.through_layers(batch.tokens, rotations, batch.attention, kv, ops)


def _compare(op: str, result: Any, right: Any) -> None:
    pairs = zip(result, right, strict=True) if isinstance(result, tuple) else [(result, right)]
    for given, wanted in pairs:
        if (why := difference(given, wanted, TOLERANCE.get(op, TOLERANCE_OF_OTHERS))) is not None:
            raise KernelMismatch(op, f"in service: {why}")
