"""Runs a step of an encoder: texts laid one after the other, the model, the pooling. One plan in, one result out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from trivium.execute.send import send
from trivium.execute.shadow import MOST_TOKENS, Shadow
from trivium.faults import fault_point
from trivium.kernels.ops import Ops
from trivium.models.encoder import Encoder
from trivium.types.encode import EncodeResult, EncodeStep, EncodeText
from trivium.types.execution_stats import ExecutionStats
from trivium.types.step import RowFailure

WHY_EAGER = "encoders run op by op"


class EncoderRunner:
    def __init__(self, model: Encoder, shadow: Shadow) -> None:
        self._model = model
        self._shadow = shadow
        self._num_steps = 0

    @property
    def ops(self) -> Ops:
        return self._model.ops

    def use(self, ops: Ops) -> None:
        """From now on; they read the weights that are there."""
        ops.fallbacks.update(self._model.ops.fallbacks)
        self._model.ops = ops

    @torch.inference_mode()
    def run(self, step: EncodeStep) -> EncodeResult:
        """Raises KernelMismatch where kernels are to be left, and the step is to be computed again without them."""
        self._num_steps += 1
        if self._shadow.is_due():
            looked_at = _first_tokens(step.texts)
            self._shadow.look(self.ops, lambda ops: self._vectors(looked_at, ops))
        try:
            fault_point("runner.encode")
            vectors = self._vectors(step.texts, self.ops).cpu().numpy()
        except Exception as error:
            if self._shadow.is_ops_fault(error):
                self._vectors(step.texts, self._shadow.blaming(self.ops))  # raises where it is an op's fault
            raise
        sound = np.isfinite(vectors).all(axis=1)
        return EncodeResult(
            step.id,
            tuple(vector.tobytes() for vector in vectors),
            tuple(
                RowFailure(int(place), "the model gave numbers that are not finite") for place in np.flatnonzero(~sound)
            ),
        )

    def _vectors(self, texts: Sequence[EncodeText], ops: Ops) -> Tensor:
        """float32 [N, vector_size]"""
        lengths = np.array([len(text.tokens) for text in texts])
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        tokens = np.concatenate([np.array(text.tokens, dtype=np.int64) for text in texts])
        positions = np.arange(len(tokens)) - np.repeat(bounds[:-1], lengths)
        seconds = np.repeat([text.second_from for text in texts], lengths)
        token_types = (positions >= seconds).astype(np.int64)
        inputs = [tokens, positions, token_types, bounds.astype(np.int32)]
        sent = send(inputs, self._model.device)
        hidden = self._model.forward(sent[0], sent[1], sent[2], sent[3], ops)
        return self._model.pooled(hidden, bounds.tolist(), ops)

    def stats(self) -> ExecutionStats:
        return ExecutionStats(eager_steps={WHY_EAGER: self._num_steps}, op_fallbacks=dict(self._model.ops.fallbacks))


def _first_tokens(texts: Sequence[EncodeText]) -> list[EncodeText]:
    """So much of a step's texts as is looked at; the beginning of a text is a text too."""
    taken, room = list[EncodeText](), MOST_TOKENS
    for text in texts:
        if not room:
            break
        taken.append(replace(text, tokens=text.tokens[:room]))
        room -= len(taken[-1].tokens)
    return taken
