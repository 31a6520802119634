"""The likeliest token of each row of logits, the lowest of equals, and whether the row's maximum is a finite number."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096


@triton.jit
def _chunk_argmax(logits, row_stride, best, places, SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    i = chunk * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * row_stride + i, mask=i < SIZE, other=float("-inf")).to(tl.float32)
    # A number that is none would not be seen by a maximum.
    value = tl.where(value == value, value, float("inf"))
    highest = tl.max(value, axis=0)
    place = tl.min(tl.where(value == highest, i, SIZE), axis=0)
    tl.store(best + row * NUM_CHUNKS + chunk, highest)
    tl.store(places + row * NUM_CHUNKS + chunk, place)


@triton.jit
def _row_argmax(best, places, tokens, SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, BLOCK)
    value = tl.load(best + row * NUM_CHUNKS + chunk, mask=chunk < NUM_CHUNKS, other=float("-inf"))
    place = tl.load(places + row * NUM_CHUNKS + chunk, mask=chunk < NUM_CHUNKS, other=SIZE)
    highest = tl.max(value, axis=0)
    token = tl.min(tl.where(value == highest, place, SIZE), axis=0)
    is_finite = (highest < float("inf")) & (highest > float("-inf"))
    tl.store(tokens + row, tl.where(is_finite, token, -1).to(tl.int64))


def argmax(logits: Tensor) -> Tensor:
    """logits [M, V] -> int64 [M]; NOT_FINITE (kernels/sample.py) where a row has a nan, or a maximum that is infinite."""
    return argmax_of_chunks(*chunk_maxima(logits), logits.shape[1])


def chunk_maxima(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of each CHUNK of a row its largest logit, float32 [M, chunks], infinite where one is no number; and where it stands."""
    num_rows, size = logits.shape
    chunks = triton.cdiv(size, CHUNK)
    best = torch.empty((num_rows, chunks), dtype=torch.float32, device=logits.device)
    places = torch.empty((num_rows, chunks), dtype=torch.int32, device=logits.device)
    if num_rows:
        _chunk_argmax[(num_rows, chunks)](
            logits, logits.stride(0), best, places, SIZE=size, NUM_CHUNKS=chunks, BLOCK=CHUNK
        )
    return best, places


def argmax_of_chunks(best: Tensor, places: Tensor, size: int) -> Tensor:
    num_rows, chunks = best.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=best.device)
    if num_rows:
        _row_argmax[(num_rows,)](
            best, places, tokens, SIZE=size, NUM_CHUNKS=chunks, BLOCK=triton.next_power_of_2(chunks), num_warps=1
        )
    return tokens
