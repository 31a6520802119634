"""Log probabilities of the model's own distribution: of a chosen token, its rank, and those of the likeliest tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.logit_memory import row_slices

TOLERANCE = 1e-6


def reference(logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """logits [M, V], tokens int64 [M] -> float64 and int64, [M, 1 + num_top] each. All is computed from float32.

    The first column has the log probability of the row's token and its rank, 1 being the likeliest; the others have the
    likeliest tokens in order, the lower id first where two are equal.
    """
    slices = row_slices(len(logits), logits.shape[1], logits.device.type)
    parts = [_of_some(logits[rows].float(), tokens[rows], num_top) for rows in slices]
    scores, places = zip(*parts, strict=True)
    return torch.cat(scores), torch.cat(places)


def _of_some(logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    return scored(logits, tokens, num_top, logits.double().logsumexp(dim=-1, keepdim=True))


def scored(logits: Tensor, tokens: Tensor, num_top: int, normalizer: Tensor) -> tuple[Tensor, Tensor]:
    """logits float32; `normalizer`: float64 [M, 1], the logarithm of the sum of each row's exponentials."""
    chosen = logits.gather(1, tokens.unsqueeze(1))
    ranks = (logits > chosen).sum(dim=1, keepdim=True) + 1
    top = _order(logits).topk(num_top, dim=-1).indices
    return (
        torch.cat([chosen, logits.gather(1, top)], dim=1).double() - normalizer,
        torch.cat([ranks, top], dim=1),
    )


def _order(logits: Tensor) -> Tensor:
    """Distinct whole numbers in the order of the logits, and where they are equal against that of the ids."""
    bits = (logits + 0.0).view(torch.int32)  # + 0 makes -0 equal 0
    by_value = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return by_value * 2**32 + torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)


def cases(random: Generator) -> Iterator[Case]:
    for rows, vocab, num_top in [(1, 1, 1), (1, 7, 7), (3, 515, 0), (3, 515, 1), (5, 3000, 20), (2, 49152, 5)]:
        tokens = torch.randint(vocab, (rows,), generator=random)
        for spread in (0.0, 3.0, 30.0):
            logits = normal(random, rows, vocab) * spread
            yield Case(f"{rows} x {vocab}, {num_top}, spread {spread}", (logits, tokens, num_top))
            yield Case(f"{rows} x {vocab}, {num_top}, spread {spread}, ties", (logits.round(), tokens, num_top))
    banned = normal(random, 2, 100)
    banned[:, ::2] = float("-inf")
    yield Case("banned tokens", (banned, torch.tensor([1, 3]), 50))
    yield Case("no rows", (normal(random, 0, 70), torch.zeros(0, dtype=torch.int64), 3))
