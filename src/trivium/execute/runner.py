"""Runs a step: row changes, block copies, the model, the sampler. One plan in, one result out.

    running = runner.launch(step)
    result = running.result()

The next step may be launched before the result of this one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from trivium.execute.batch import build_batch
from trivium.execute.graph import GraphMode
from trivium.execute.logprobs import token_logprobs
from trivium.execute.rows import Rows
from trivium.execute.sampler import Sampler
from trivium.grammar.service import GrammarService
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.types.execution_stats import ExecutionStats
from trivium.types.step import PromptLogprobs, RowFailure, RowWork, SampledRow, Step, StepResult, TokenLogprobs

# Rows of logits held at once for prompt logprobs: 64 rows of a 262,144-token vocabulary are 64 MiB.
PROMPT_LOGITS_AT_ONCE = 64


class RunningStep:
    """A step that was launched."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        """Waits for its end."""
        return self._result


class Runner:
    def __init__(
        self,
        model: Decoder,
        kv: KVCache,
        rows: Rows,
        block_size: int,
        device: torch.device,
        grammars: GrammarService,
    ) -> None:
        self.graph = GraphMode(model, kv, max_rows=len(rows.tokens), max_blocks=rows.tables[0].shape[1])
        self._model = model
        self._kv = kv
        self._rows = rows
        self._sampler = Sampler(model.ops, rows)
        self._prompt_scores: dict[int, int] = {}  # of rows that want prompt logprobs: how many of the likeliest
        self._block_size = block_size
        self._device = device
        self._grammars = grammars

    def stats(self) -> ExecutionStats:
        return ExecutionStats(
            replayed_steps=self.graph.replayed,
            eager_steps=dict(self.graph.eager),
            op_fallbacks=dict(self._model.ops.fallbacks),
        )

    def launch(self, step: Step) -> RunningStep:
        return RunningStep(self._run(step))

    @torch.inference_mode()
    def _run(self, step: Step) -> StepResult:
        self._apply_changes(step)
        if not step.work:
            return StepResult(step_id=step.id, sampled=())
        if (logits := self.graph.decode(self._rows, step)) is not None:
            sampled, failures = self._sample(logits, [work.row for work in step.work])
            return StepResult(step_id=step.id, sampled=tuple(sampled), failures=tuple(failures))
        batch = build_batch(self._rows, step.work, self._block_size, self._device, begins=bool(step.starts))
        hidden = self.graph.forward(batch)
        prompt_logprobs = tuple(self._prompt_logprobs(step.work, hidden)) if self._prompt_scores else ()
        samples = np.array([work.samples for work in step.work])
        if not samples.any():
            return StepResult(step_id=step.id, sampled=(), prompt_logprobs=prompt_logprobs)
        last = torch.from_numpy(batch.last[samples]).to(self._device)
        logits = self._model.logits(hidden[last])
        sampled, failures = self._sample(logits, [work.row for work in step.work if work.samples])
        return StepResult(
            step_id=step.id, sampled=tuple(sampled), prompt_logprobs=prompt_logprobs, failures=tuple(failures)
        )

    def _sample(self, logits: Tensor, row_ids: Sequence[int]) -> tuple[list[SampledRow], list[RowFailure]]:
        problems = self._grammars.wait_for_masks()
        masks = {row: self._grammars.masks[row] for row in row_ids if self._grammars.has_row(row)}
        sampled, failures = self._sampler.sample(logits, row_ids, masks)
        if masks:
            failures = [failure for failure in failures if failure.row not in problems]
            failures += [
                RowFailure(row, why.why, why.is_requests_fault) for row, why in problems.items() if row in masks
            ]
            sampled = [item for item in sampled if item.row not in problems]
            for item in sampled:
                if item.row in masks:
                    self._grammars.advance_row(item.row, item.tokens[0])
        self._grammars.ask_for_masks()  # of the next step: they are filled while that is planned and computed
        return sampled, failures

    def _apply_changes(self, step: Step) -> None:
        for row in step.ends:
            self._rows.end(row)
            self._sampler.end(row)
            self._prompt_scores.pop(row, None)
            self._grammars.close_row(row)
        for start in step.starts:
            self._rows.start(start)
            self._sampler.start(start)
            if start.sampling.prompt_logprobs is not None:
                self._prompt_scores[start.row] = start.sampling.prompt_logprobs
            if start.sampling.grammar is not None:
                generated = start.tokens[start.num_prompt_tokens :]
                self._grammars.open_row(start.row, start.sampling.grammar, generated)
        self._grammars.ask_for_masks()
        if step.copies:
            self._kv.copy_blocks([(copy.src, copy.dst) for copy in step.copies])
        for work in step.work:
            if work.tables:
                self._rows.update_tables(work.row, work.tables)

    def _prompt_logprobs(self, work: Sequence[RowWork], hidden: Tensor) -> Iterator[PromptLogprobs]:
        """Position p predicts token p + 1, as long as that is one of the prompt's."""
        offset = 0
        for item in work:
            num_top = self._prompt_scores.get(item.row)
            stop = min(item.start + item.count, int(self._rows.num_prompt_tokens[item.row]) - 1)
            if num_top is not None and stop > item.start:
                predicted = torch.from_numpy(self._rows.tokens[item.row, item.start + 1 : stop + 1]).to(self._device)
                rows = hidden[offset : offset + stop - item.start]
                entries: list[TokenLogprobs] = []
                for i in range(0, len(predicted), PROMPT_LOGITS_AT_ONCE):
                    part = slice(i, i + PROMPT_LOGITS_AT_ONCE)
                    logits, tokens = self._model.logits(rows[part]), predicted[part]
                    entries += token_logprobs(self._model.ops, logits, tokens, [num_top] * len(tokens))
                yield PromptLogprobs(row=item.row, first=item.start + 1, logprobs=tuple(entries))
            offset += item.count
