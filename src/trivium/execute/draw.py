"""Drawing one token from one row of logits.

The filters come in the order temperature, top-k, top-p, min-p, typical-p, each on what the one before left. Only as much
of the vocabulary is ordered as the filters need.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.types.request import Sampling

# Top-p rarely keeps more tokens than this; where it does, eight times as many are ordered, and so on.
FIRST_HEAD = 256


def draw(logits: Tensor, sampling: Sampling, uniform: float) -> int:
    """One token of a row [V] of finite-or-minus-infinity logits; `uniform` in [0, 1) decides."""
    if sampling.temperature == 0.0:
        return int(logits.argmax())
    ids, probs = candidates(logits, sampling)
    cumulative = probs.cumsum(0)
    chosen = int(torch.searchsorted(cumulative, uniform * float(cumulative[-1]), right=True))
    chosen = min(chosen, len(probs) - 1)
    return chosen if ids is None else int(ids[chosen])


def candidates(logits: Tensor, sampling: Sampling) -> tuple[Tensor | None, Tensor]:
    """(token ids, float64 weights) that may be drawn; ids None means the whole vocabulary in order."""
    scaled = logits.to(torch.float64) / sampling.temperature
    ids = None
    if 0 < sampling.top_k < len(scaled):
        scaled, ids = scaled.topk(sampling.top_k)
    probs = (scaled - scaled.max()).exp_()
    if sampling.top_p < 1.0:
        probs, kept = _nucleus(probs, sampling.top_p, is_ordered=ids is not None)
        ids = kept if ids is None else ids[kept]
    if sampling.min_p > 0.0:
        keep = probs >= sampling.min_p * probs.max()
        ids, probs = _select(ids, probs, keep)
    if sampling.typical_p < 1.0:
        ids, probs = _select(ids, probs, _typical(probs, sampling.typical_p))
    return ids, probs


def _nucleus(probs: Tensor, top_p: float, is_ordered: bool) -> tuple[Tensor, Tensor]:
    """The likeliest tokens until their mass reaches top_p: (weights, indices), likeliest first."""
    wanted = top_p * float(probs.sum())
    head = FIRST_HEAD
    while True:
        if is_ordered or head >= len(probs):
            ordered, order = (
                (probs, torch.arange(len(probs))) if is_ordered else probs.sort(descending=True, stable=True)
            )
            complete = True
        else:
            ordered, order = probs.topk(head)
            complete = False
        mass_before = ordered.cumsum(0) - ordered
        count = max(1, int((mass_before < wanted).sum()))
        if complete or count < len(ordered):
            return ordered[:count], order[:count]
        head *= 8


def _typical(probs: Tensor, mass: float) -> Tensor:
    """Tokens whose surprise is nearest to the expected surprise, until their mass reaches `mass`: a mask."""
    normal = probs / probs.sum()
    surprise = -normal.log()
    entropy = torch.nansum(normal * surprise)
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(stable=True)
    count = int((normal[order].cumsum(0) < mass).sum())
    return distance <= ordered[min(count, len(ordered) - 1)]


def _select(ids: Tensor | None, probs: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    kept = keep.nonzero().squeeze(1)
    return kept if ids is None else ids[kept], probs[kept]
