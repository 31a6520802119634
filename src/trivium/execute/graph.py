"""Graph mode with counted fallback: a step is replayed where it could be recorded, and runs op by op where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from trivium.execute.batch import Batch
from trivium.execute.decode_graphs import Decoded, DecodeGraphs
from trivium.execute.rows import Rows
from trivium.kernels.ops import Graph, NotRecordable, Ops
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.types.step import Step


class GraphMode:
    """`replayed` and `eager` count steps; an eager step is counted under the reason why it was not replayed.

    Some providers record a step of any shape; of others, steps of decoding rows are captured, shape by shape.
    """

    def __init__(self, model: Decoder, kv: KVCache, rows: Rows) -> None:
        self._model = model
        self._kv = kv
        self._graph: Graph | None = None
        self._decode: DecodeGraphs | None = None
        self._why_eager = ""
        self.replayed = 0
        self.eager: Counter[str] = Counter()
        if (capture := model.ops.capture) is not None:
            self._decode = DecodeGraphs(model, kv, rows, capture, model.device)
            return
        try:
            self._graph = self._record()
        except NotRecordable as reason:
            self._why_eager = str(reason)

    @property
    def state(self) -> str:
        """For the start report."""
        if self._decode is not None:
            sizes = self._decode.sizes
            captured = f"steps of {len(sizes)} numbers of rows up to {max(sizes, default=0)} captured"
            return f"{captured}; {self._decode.why_fewer}" if self._decode.why_fewer else captured
        return "recorded once, replayed for every step" if self._graph else f"none: {self._why_eager}"

    def count_anew(self) -> None:
        self.replayed = 0
        self.eager.clear()

    def decode(self, step: Step) -> Decoded | None:
        """What a step of decoding rows finds, where its shape was captured."""
        if self._decode is None:
            return None
        if step.starts or any(work.count != 1 or not work.samples for work in step.work):
            self._why_eager = "prompts in the step"
        elif (size := self._decode.size_for(len(step.work))) is None:
            self._why_eager = "more rows than were captured"
        else:
            self.replayed += 1
            return self._decode.decode(step.work, size)
        return None

    def forward(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        """Hidden states [T, H] of the batch's tokens, after the final norm; with `wanted`, int64 [M], of those: [M, H]."""
        if self._graph is None:
            self.eager[self._why_eager] += 1
        else:
            self.replayed += 1
        return self.uncounted(batch, wanted)

    def filled_up(self, wanted: Tensor) -> Tensor:
        """Indices int64 [M] -> [at least M], with some token's behind them: as many as some captured step has rows, so that
        libraries find a shape that they know. For each new one they would choose, and load, other kernels."""
        size = self._decode.size_for(len(wanted)) if self._decode is not None and len(wanted) else None
        return wanted if size is None else pad(wanted, (0, size - len(wanted)))

    def uncounted(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        """As `forward`, for a look that is no step of its own."""
        rotations = self._model.rotations(batch.positions, batch.lengths)
        if self._graph is None:
            ops = self._model.ops
            return self._model.through_layers(batch.tokens, rotations, batch.attention, self._kv, ops, wanted)
        return self._graph.run(batch.tokens, rotations, batch.attention, wanted)

    def _record(self) -> Graph:
        record = self._model.ops.record
        if record is None:
            raise NotRecordable("these kernels have no graph mode")

        def steps(ops: Ops, tokens: Any, rotations: Sequence[Any], attention: Sequence[Any]) -> Any:
            return self._model.through_layers(tokens, rotations, attention, self._kv, ops)

        return record(steps, len(self._model.ropes), len(self._kv.spec.groups))
