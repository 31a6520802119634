"""Attention inside whole texts that lie one after the other: each token sees all tokens of its text, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal

TOLERANCE = 1e-5


def reference(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float, reach: int | None) -> Tensor:
    """q, k, v [T, H, D]; starts int32 [N + 1]: text n's tokens are starts[n] … starts[n + 1] - 1 -> [T, H, D].

    `reach`: a token sees this many others on either side; None sees all.
    """
    out = torch.empty_like(q)
    bounds: list[int] = starts.tolist()
    for begin, end in pairwise(bounds):
        out[begin:end] = _attend(q[begin:end], k[begin:end], v[begin:end], scale, reach)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, reach: int | None) -> Tensor:
    """Of one text: q, k, v [n, H, D] -> float32 [n, H, D]."""
    queries, keys, values = (part.float().transpose(0, 1)[None] for part in (q, k, v))  # [1, H, n, D]
    seen = None
    if reach is not None and len(q) > reach + 1:
        places = torch.arange(len(q), device=q.device)
        seen = (places[:, None] - places).abs() <= reach
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale)[0].transpose(0, 1)


def cases(random: Generator) -> Iterator[Case]:
    for lengths in [(1,), (7,), (1, 40, 3), (130, 129), (300, 2), (16, 16, 16, 16), (0, 5, 0)]:
        for heads, dim in [(2, 32), (1, 20), (3, 64)]:
            yield _case(random, lengths, heads, dim, None)
    for reach in (0, 3, 64, 128):
        yield _case(random, (1, 40, 150, 300), 2, 32, reach)
    joint = normal(random, 50, 3 * 2 * 32)
    q, k, v = (part.view(50, 2, 32) for part in torch.split(joint, 64, dim=1))
    yield Case("parts of one projection", (q, k, v, _starts((20, 30)), 0.2, None))


def _case(random: Generator, lengths: Sequence[int], heads: int, dim: int, reach: int | None) -> Case:
    shape = (sum(lengths), heads, dim)
    arguments = (normal(random, *shape), normal(random, *shape), normal(random, *shape), _starts(lengths))
    return Case(f"texts of {lengths}, heads {heads} x {dim}, reach {reach}", (*arguments, dim**-0.5, reach))


def _starts(lengths: Sequence[int]) -> Tensor:
    return F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0), (1, 0)).int()
