"""The next token of every row that has caught up, from the rows' logits and what their requests ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trivium.execute.logprobs import token_logprobs
from trivium.execute.rows import Rows
from trivium.execute.sampling import SamplingColumns
from trivium.execute.thinking import forced_token
from trivium.kernels.ops import Ops
from trivium.kernels.sample import ALL_BANNED, NOT_FINITE
from trivium.types.step import RowFailure, RowStart, SampledRow, TokenLogprobs

TOKEN_OF_A_FAILED_ROW = 0  # nobody hears of it, but a step in flight may count on a token


class Sampler:
    def __init__(self, ops: Ops, rows: Rows) -> None:
        self._ops = ops
        self._rows = rows
        self._columns = SamplingColumns(max_rows=len(rows.tokens))

    def start(self, start: RowStart) -> None:
        self._columns.start(start.row, start.sampling, start.stopping)

    def end(self, row: int) -> None:
        self._columns.end(row)

    def sample(
        self, logits: Tensor, row_ids: Sequence[int], grammar_masks: Mapping[int, np.ndarray]
    ) -> tuple[list[SampledRow], list[RowFailure]]:
        """logits: float32 [M, V], one for each of `row_ids`. Appends each sampled token to its row.

        `grammar_masks`: by row, int32 [ceil(V / 32)]; bit t % 32 of word t // 32 says whether token t may come next.
        """
        ids = np.array(row_ids, dtype=np.int64)
        batch = self._columns.batch(ids, self._rows, logits.shape[1], logits.device, grammar_masks)
        chosen = self._forced(self._ops.sample(logits, batch), row_ids)
        logprobs = self._logprobs(logits, chosen, row_ids)
        tokens = chosen.numpy(force=True)
        self._rows.append(ids, np.where(tokens >= 0, tokens, TOKEN_OF_A_FAILED_ROW))
        sampled, failures = [], []
        for row, token in zip(row_ids, tokens.tolist(), strict=True):
            if token >= 0:
                sampled.append(SampledRow(row, (token,), (logprobs[row],) if row in logprobs else ()))
            else:
                failures.append(_failure(row, token))
        return sampled, failures

    def _forced(self, chosen: Tensor, row_ids: Sequence[int]) -> Tensor:
        """With the tokens that end a row's reasoning, where its budget is spent."""
        if not self._columns.thinking:
            return chosen
        forced = np.full(len(row_ids), -1, dtype=np.int64)
        for place, row in enumerate(row_ids):
            budget = self._columns.thinking.get(row)
            if budget is not None:
                generated = self._rows.tokens_of(row)[self._rows.num_prompt_tokens[row] :]
                token = forced_token(budget, generated)
                forced[place] = -1 if token is None else token
        tokens = torch.from_numpy(forced).to(chosen.device)
        return torch.where((tokens >= 0) & (chosen != NOT_FINITE), tokens, chosen)

    def _logprobs(self, logits: Tensor, chosen: Tensor, row_ids: Sequence[int]) -> dict[int, TokenLogprobs]:
        """By row, of those that want them. A row without a token is given those of the first: nobody reads them."""
        wanted = self._columns.logprobs
        places = [place for place, row in enumerate(row_ids) if row in wanted] if wanted else []
        if not places:
            return {}
        rows = [row_ids[place] for place in places]
        if len(places) < len(row_ids):
            logits, chosen = logits[places], chosen[places]
        entries = token_logprobs(self._ops, logits, chosen.clamp(min=0), [wanted[row] for row in rows])
        return dict(zip(rows, entries, strict=True))


def _failure(row: int, token: int) -> RowFailure:
    if token == NOT_FINITE:
        return RowFailure(row, "the model gave logits that are not finite numbers")
    assert token == ALL_BANNED
    return RowFailure(row, "every token is banned by the request's own parameters", is_requests_fault=True)
