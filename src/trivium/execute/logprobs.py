"""Log probabilities of the model's own distribution, before temperature and penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivium.types.step import TokenLogprobs


def token_logprobs(logits: Tensor, tokens: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Of tokens[i] at row i of float32 logits [M, V], and of the `num_top` likeliest there."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=1) + 1
    top_values, top_ids = logprobs.topk(num_top, dim=-1) if num_top else (logprobs[:, :0], logprobs[:, :0].long())
    return tuple(
        TokenLogprobs(token=int(token), logprob=logprob, rank=rank, top_tokens=tuple(ids), top_logprobs=tuple(values))
        for token, logprob, rank, ids, values in zip(
            tokens, chosen.squeeze(1).tolist(), ranks.tolist(), top_ids.tolist(), top_values.tolist(), strict=True
        )
    )
