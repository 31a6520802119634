"""The next token of every row that has caught up, from the rows' logits and what their requests ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.execute.host_copies import HostCopies
from trivium.execute.logprobs import Logprobs
from trivium.execute.rows import Rows
from trivium.execute.sampling import SamplingColumns
from trivium.faults import fault_point
from trivium.kernels.logit_memory import ROWS_TOGETHER, row_slices
from trivium.kernels.ops import Ops
from trivium.kernels.sample import ALL_BANNED, NOT_FINITE, SampleBatch
from trivium.types.request import Sampling
from trivium.types.step import RowFailure, RowStart, SampledRow


@dataclass(frozen=True)
class Drawn:
    """The tokens that rows of a step draw, on their way to the host."""

    row_ids: np.ndarray  # int64 [M]
    places: np.ndarray  # int64 [M]: where they stand in their rows
    tokens: Tensor  # int64 [M]: negative where the row failed
    logprobs: Sequence[Logprobs]
    rows_with_logprobs: Sequence[int]


class Sampler:
    """`draw` while a step is launched, `take` when it has run."""

    def __init__(self, ops: Ops, rows: Rows) -> None:
        self.ops = ops
        self._rows = rows
        self._columns = SamplingColumns(max_rows=len(rows.tokens))

    def start(self, start: RowStart) -> None:
        self._columns.start(start.row, start.sampling, start.stopping)

    def end(self, row: int) -> None:
        self._columns.end(row)

    def draw(
        self,
        logits: Tensor,
        row_ids: Sequence[int],
        grammar_masks: Mapping[int, np.ndarray],
        copies: HostCopies,
        likeliest: Tensor | None = None,
    ) -> Drawn:
        """logits: [M, V], one for each of `row_ids`. Each row gets a token, which the device knows.

        `grammar_masks`: by row, int32 [ceil(V / 32)]; bit t % 32 of word t // 32 says whether token t may come next.
        `likeliest` [M]: what rows that ask for nothing draw, where that is known and in `drawn` already.
        """
        fault_point("runner.sample")
        ids = np.array(row_ids, dtype=np.int64)
        batch = self._columns.batch(ids, self._rows, logits.shape[1], logits.device, grammar_masks)
        if likeliest is not None and batch == SampleBatch() and not self._columns.thinking:
            chosen = likeliest
        else:
            chosen = self._forced(self.ops.sample(logits, batch), row_ids, grammar_masks)
            self._rows.put_drawn(chosen)
        places = self._rows.expect(ids)
        logprobs, rows = self._logprobs(logits, chosen, row_ids, copies)
        return Drawn(ids, places, copies.take(chosen), logprobs, rows)

    def take(self, drawn: Drawn) -> tuple[list[SampledRow], list[RowFailure]]:
        """What was drawn, when its copies are there."""
        tokens = drawn.tokens.numpy()
        self._rows.learn(drawn.row_ids, drawn.places, np.maximum(tokens, 0))
        entries = (entry for part in drawn.logprobs for entry in part.entries())
        logprobs = dict(zip(drawn.rows_with_logprobs, entries, strict=True))
        sampled, failures = [], []
        for row, token in zip(drawn.row_ids.tolist(), tokens.tolist(), strict=True):
            if token >= 0:
                sampled.append(SampledRow(row, (token,), (logprobs[row],) if row in logprobs else ()))
            else:
                failures.append(_failure(row, token))
        return sampled, failures

    def _forced(self, chosen: Tensor, row_ids: Sequence[int], grammar_masks: Mapping[int, np.ndarray]) -> Tensor:
        """With the tokens that end a row's reasoning, where its budget is spent and its grammar lets them come."""
        if not self._columns.thinking:
            return chosen
        forced = np.full(len(row_ids), -1, dtype=np.int64)
        for place, row in enumerate(row_ids):
            watch = self._columns.thinking.get(row)
            if watch is not None:
                generated = self._rows.tokens_of(row)[self._rows.num_prompt_tokens[row] :]
                token = watch.forced_token(generated)
                if token is not None and _allows(grammar_masks.get(row), token):
                    forced[place] = token
        tokens = torch.from_numpy(forced).to(chosen.device, non_blocking=True)
        return torch.where((tokens >= 0) & (chosen != NOT_FINITE), tokens, chosen)

    def _logprobs(
        self, logits: Tensor, chosen: Tensor, row_ids: Sequence[int], copies: HostCopies
    ) -> tuple[Sequence[Logprobs], Sequence[int]]:
        """Of the rows that want them, and which these are."""
        wanted = self._columns.logprobs
        places = [place for place, row in enumerate(row_ids) if row in wanted] if wanted else []
        if not places:
            return (), ()
        fault_point("runner.logprobs")
        rows = [row_ids[place] for place in places]
        tokens = chosen.clamp(min=0)
        num_top = [wanted[row] for row in rows]
        if len(places) == len(row_ids):
            return [Logprobs(self.ops, logits, tokens, num_top, copies)], rows
        slices = row_slices(len(places), logits.shape[1], logits.device.type, ROWS_TOGETHER)  # each of them is a copy
        return [
            Logprobs(self.ops, logits[places[some]], tokens[places[some]], num_top[some], copies) for some in slices
        ], rows


def why_host_is_needed(sampling: Sampling) -> str | None:
    """Why a row's next token cannot be drawn before its last is known outside of the device."""
    if sampling.grammar is not None:
        return "grammar"
    if sampling.thinking is not None:
        return "thinking budget"
    if any(len(word) > 1 for word in sampling.bad_words):
        return "bad words"
    if sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
        return "penalties"
    return None


def _allows(mask: np.ndarray | None, token: int) -> bool:
    return mask is None or bool(mask[token // 32] >> (token % 32) & 1)


def _failure(row: int, token: int) -> RowFailure:
    if token == NOT_FINITE:
        return RowFailure(row, "the model gave logits that are not finite numbers")
    assert token == ALL_BANNED
    return RowFailure(row, "every token is banned by the request's own parameters", is_requests_fault=True)
