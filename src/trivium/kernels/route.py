"""Which experts each token goes through, and what share each has in its result."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal

TOLERANCE = 1e-6


def reference(logits: Tensor, top_k: int, normalized: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> ids int64 [T, k], likeliest first, and shares float32 [T, k].

    A share is the expert's probability; `normalized`: among those chosen, so that a token's shares sum to 1.
    """
    shares, ids = torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), top_k, dim=-1)
    return ids, shares / shares.sum(dim=-1, keepdim=True) if normalized else shares


def cases(random: Generator) -> Iterator[Case]:
    for tokens, num_experts, top_k in [(0, 4, 2), (1, 1, 1), (1, 8, 2), (7, 60, 4), (133, 128, 8), (3, 8, 8)]:
        # No two alike: which of two equals comes first is nobody's promise.
        logits = torch.stack(
            [torch.randperm(num_experts, generator=random) for _ in range(tokens)] or [torch.empty(num_experts)]
        )
        logits = logits[:tokens].float() * 0.1 + normal(random, tokens, num_experts) * 0.01
        for normalized in (False, True):
            yield Case(f"{tokens} tokens, {top_k} of {num_experts}", (logits, top_k, normalized))
