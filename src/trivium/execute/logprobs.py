"""Log probabilities as the step's result tells them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trivium.kernels.ops import Ops
from trivium.types.step import TokenLogprobs


def token_logprobs(ops: Ops, logits: Tensor, tokens: Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Of tokens[i] at row i of float32 logits [M, V], and of the num_top[i] likeliest there."""
    scores, places = ops.logprobs(logits, tokens, min(max(num_top), logits.shape[1]))
    return [
        TokenLogprobs(token, logprob, rank, tuple(top_tokens[:count]), tuple(top_logprobs[:count]))
        for token, (logprob, *top_logprobs), (rank, *top_tokens), count in zip(
            tokens.tolist(), scores.tolist(), places.tolist(), num_top, strict=True
        )
    ]
