"""The next token of every row that has caught up, from the rows' logits and their sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivium.execute.draw import draw
from trivium.execute.logits import adjust_logits, ban_tokens, changes_logits
from trivium.execute.logprobs import token_logprobs
from trivium.execute.random import uniform
from trivium.execute.rows import Rows
from trivium.execute.thinking import forced_token
from trivium.grammar.service import GrammarService
from trivium.types.step import RowFailure, SampledRow

TOKEN_OF_A_FAILED_ROW = 0  # nobody hears of it, but a step in flight may count on a token


def sample_rows(
    logits: Tensor, rows: Rows, row_ids: Sequence[int], grammars: GrammarService
) -> tuple[list[SampledRow], list[RowFailure]]:
    """logits: float32 [M, V], one for each of `row_ids`. Appends each sampled token to its row and its grammar."""
    sampled: list[SampledRow] = []
    failures: list[RowFailure] = []
    greedy = logits.argmax(dim=-1).tolist()
    # A NaN anywhere in a row makes its maximum NaN; an overflow makes it infinite.
    sound = torch.isfinite(logits.amax(dim=-1)).tolist()
    without_mask = grammars.wait_for_masks()
    for i, row in enumerate(row_ids):
        if row in without_mask:
            problem = without_mask[row]
            failures.append(RowFailure(row, problem.why, problem.is_requests_fault))
            rows.append(row, TOKEN_OF_A_FAILED_ROW)
            continue
        if not sound[i]:
            failures.append(RowFailure(row=row, message="the model gave logits that are not finite numbers"))
            rows.append(row, TOKEN_OF_A_FAILED_ROW)
            continue
        mask = grammars.masks[row] if grammars.has_row(row) else None
        token = _next_token(logits[i], greedy[i], rows, row, mask)
        if token is None:
            message = "every token is banned by the request's own parameters"
            failures.append(RowFailure(row=row, message=message, is_requests_fault=True))
            rows.append(row, TOKEN_OF_A_FAILED_ROW)
            continue
        wanted = rows.sampling[row].logprobs  # type: ignore[union-attr]
        logprobs = () if wanted is None else token_logprobs(logits[i : i + 1], [token], wanted)
        rows.append(row, token)
        if mask is not None:
            grammars.advance_row(row, token)
        sampled.append(SampledRow(row=row, tokens=(token,), logprobs=logprobs))
    return sampled, failures


def _next_token(logits: Tensor, greedy: int, rows: Rows, row: int, mask: NDArray[np.int32] | None) -> int | None:
    sampling, stopping = rows.sampling[row], rows.stopping[row]
    assert sampling is not None and stopping is not None, f"row {row} samples, but no sequence holds it"
    tokens, num_prompt = rows.tokens_of(row), int(rows.num_prompt_tokens[row])
    if sampling.thinking is not None:
        forced = forced_token(sampling.thinking, tokens[num_prompt:])
        if forced is not None:
            return forced
    adjusted = mask is not None or changes_logits(sampling, stopping, len(tokens) - num_prompt)
    if sampling.temperature == 0.0 and not adjusted:
        return greedy
    if adjusted:
        logits = logits.clone()
        if mask is not None:
            ban_tokens(logits, mask)
        adjust_logits(logits, sampling, stopping, tokens, num_prompt)
        if not torch.isfinite(logits.max()):
            return None
    return draw(logits, sampling, uniform(sampling.seed, len(tokens)))
