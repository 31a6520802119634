"""Rotary position embedding of the half-split kind: element i turns with element i + half."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from trivium.kernels.cases import Case, normal
from trivium.kernels.token_slices import token_slices

TOLERANCE = 1e-6


def reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [T, Hq, D], k [T, Hkv, D], cos and sin float32 [T, half] -> turned q and k.

    Elements from 2 * half on pass unturned (models that rotate a part of each head).
    """
    return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for tokens in token_slices(x):
        c, s = cos[tokens, None], sin[tokens, None]
        first, second = x[tokens, :, :half].float(), x[tokens, :, half : 2 * half].float()
        turned[tokens, :, :half] = first * c - second * s
        turned[tokens, :, half : 2 * half] = second * c + first * s
        turned[tokens, :, 2 * half :] = x[tokens, :, 2 * half :]
    return turned


def cases(random: Generator) -> Iterator[Case]:
    for tokens, num_q, num_kv, dim, half in [
        (1, 9, 3, 64, 32),
        (7, 8, 1, 80, 40),
        (33, 4, 4, 96, 48),
        (2, 16, 2, 128, 64),
        (3, 4, 1, 256, 128),
        (5, 2, 1, 80, 16),
        (3, 3, 1, 10, 5),
        (0, 2, 2, 64, 32),
    ]:
        angles = normal(random, tokens, half) * 10
        q, k = normal(random, tokens, num_q, dim), normal(random, tokens, num_kv, dim)
        yield Case(f"{tokens} tokens, heads {num_q}/{num_kv} of {dim}, half {half}", (q, k, angles.cos(), angles.sin()))
    joint = normal(random, 5, 12, 64)  # q, k and v of one projection
    angles = normal(random, 5, 32)
    yield Case("parts of one projection", (joint[:, :6], joint[:, 6:9], angles.cos(), angles.sin()))
