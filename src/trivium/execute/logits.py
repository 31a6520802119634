"""What changes the logits of a row before a token is drawn: biases, bans and penalties."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivium.grammar.masks import allowed_tokens
from trivium.types.request import Sampling, Stopping

BANNED = float("-inf")


def changes_logits(sampling: Sampling, stopping: Stopping, num_generated: int) -> bool:
    return bool(
        sampling.logit_bias
        or sampling.bad_words
        or sampling.allowed_token_ids is not None
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
        or num_generated < stopping.min_tokens
    )


def adjust_logits(logits: Tensor, sampling: Sampling, stopping: Stopping, tokens: np.ndarray, num_prompt: int) -> None:
    """In place, on one row [V]. `tokens`: prompt and generated so far."""
    _penalize(logits, sampling, tokens, num_prompt)
    if sampling.logit_bias:
        ids, biases = zip(*sampling.logit_bias, strict=True)
        logits[list(ids)] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    if sampling.allowed_token_ids is not None:
        allowed = list(sampling.allowed_token_ids)
        kept = logits[allowed].clone()
        logits.fill_(BANNED)
        logits[allowed] = kept
    for word in sampling.bad_words:
        *begin, end = word
        if begin == tokens[len(tokens) - len(begin) :].tolist():
            logits[end] = BANNED
    if len(tokens) - num_prompt < stopping.min_tokens and stopping.stop_token_ids:
        logits[list(stopping.stop_token_ids)] = BANNED


def ban_tokens(logits: Tensor, mask: NDArray[np.int32]) -> None:
    """In place, on one row [V]: tokens that a grammar's mask does not allow."""
    allowed = torch.from_numpy(allowed_tokens(mask, len(logits)))
    logits.masked_fill_(~allowed.to(logits.device), BANNED)


def _penalize(logits: Tensor, sampling: Sampling, tokens: np.ndarray, num_prompt: int) -> None:
    """Repetition counts the prompt too and scales; presence and frequency count what was generated and subtract."""
    if sampling.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(tokens)).to(logits.device)
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        ids, counts = np.unique(tokens[num_prompt:], return_counts=True)
        if len(ids):
            amounts = sampling.presence_penalty + sampling.frequency_penalty * counts
            logits[torch.from_numpy(ids).to(logits.device)] -= torch.from_numpy(amounts).to(logits)
