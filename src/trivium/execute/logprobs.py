"""Log probabilities as the step's result tells them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trivium.execute.host_copies import HostCopies
from trivium.kernels.ops import Ops
from trivium.types.step import TokenLogprobs


class Logprobs:
    """Of tokens[i] at row i of logits [M, V], and of the num_top[i] likeliest there."""

    def __init__(self, ops: Ops, logits: Tensor, tokens: Tensor, num_top: Sequence[int], copies: HostCopies) -> None:
        scores, places = ops.logprobs(logits, tokens, min(max(num_top), logits.shape[1]))
        self._num_top = num_top
        self._tokens, self._scores, self._places = (copies.take(tensor) for tensor in (tokens, scores, places))

    def entries(self) -> list[TokenLogprobs]:
        """Once the copies are there."""
        return [
            TokenLogprobs(token, logprob, rank, tuple(top_tokens[:count]), tuple(top_logprobs[:count]))
            for token, (logprob, *top_logprobs), (rank, *top_tokens), count in zip(
                self._tokens.tolist(), self._scores.tolist(), self._places.tolist(), self._num_top, strict=True
            )
        ]
