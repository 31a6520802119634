"""Runs a step of an encoder: texts laid one after the other, the model, the pooling. One plan in, one result out."""

from __future__ import annotations

import numpy as np
import torch

from trivium.execute.send import send
from trivium.models.encoder import Encoder
from trivium.types.encode import EncodeResult, EncodeStep
from trivium.types.execution_stats import ExecutionStats
from trivium.types.step import RowFailure

WHY_EAGER = "encoders run op by op"


class EncoderRunner:
    def __init__(self, model: Encoder) -> None:
        self._model = model
        self._num_steps = 0

    @torch.inference_mode()
    def run(self, step: EncodeStep) -> EncodeResult:
        self._num_steps += 1
        lengths = np.array([len(text.tokens) for text in step.texts])
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        tokens = np.concatenate([np.array(text.tokens, dtype=np.int64) for text in step.texts])
        positions = np.arange(len(tokens)) - np.repeat(bounds[:-1], lengths)
        seconds = np.repeat([text.second_from for text in step.texts], lengths)
        token_types = (positions >= seconds).astype(np.int64)
        sent = send([tokens, positions, token_types, bounds.astype(np.int32)], self._model.device)
        hidden = self._model.forward(*sent)
        vectors = self._model.pooled(hidden, bounds.tolist()).cpu().numpy()
        sound = np.isfinite(vectors).all(axis=1)
        return EncodeResult(
            step.id,
            tuple(vector.tobytes() for vector in vectors),
            tuple(
                RowFailure(int(place), "the model gave numbers that are not finite") for place in np.flatnonzero(~sound)
            ),
        )

    def stats(self) -> ExecutionStats:
        return ExecutionStats(eager_steps={WHY_EAGER: self._num_steps}, op_fallbacks=dict(self._model.ops.fallbacks))
