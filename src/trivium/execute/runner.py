"""Runs a step: row changes, block copies, the model, the sampler. One plan in, one result out.

    running = runner.launch(step)
    result = runner.result(running)

The next step may be launched before the result of this one is asked for: tokens that only the device knows go from one to
the other there. Nothing in `launch` waits for the device; what the host is told is copied as part of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace
from torch import Tensor

from trivium.execute.batch import Batch, build_batch
from trivium.execute.graph import GraphMode
from trivium.execute.host_copies import HostCopies
from trivium.execute.logprobs import Logprobs
from trivium.execute.rows import Rows
from trivium.execute.sampler import Drawn, Sampler
from trivium.execute.shadow import KernelMismatch, Shadow, first_tokens, what_was_raised
from trivium.faults import fault_point
from trivium.grammar.messages import RowProblem
from trivium.grammar.service import GrammarService
from trivium.kernels.logit_memory import ROWS_TOGETHER, row_slices
from trivium.kernels.ops import Ops
from trivium.kernels.verify import CAPTURED, RECORDED
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.types.execution_stats import ExecutionStats
from trivium.types.step import PromptLogprobs, RowFailure, RowWork, Step, StepResult


@dataclass(frozen=True)
class RunningPromptLogprobs:
    row: int
    first: int  # the first token that they are of
    parts: Sequence[Logprobs]

    def result(self) -> PromptLogprobs:
        """When the copies are there."""
        return PromptLogprobs(self.row, self.first, tuple(entry for part in self.parts for entry in part.entries()))


@dataclass
class RunningStep:
    """A step that was launched, and what it will tell."""

    id: int
    copies: HostCopies
    prompt_logprobs: Sequence[RunningPromptLogprobs] = ()
    pooled: Tensor | None = None  # float32 [P, H], of `pooled_rows`
    pooled_rows: Sequence[int] = ()
    drawn: Drawn | None = None
    masked_rows: Sequence[int] = ()  # those that have a grammar
    late: tuple[int, ...] = ()  # rows that draw with a later step, for want of their mask
    replayed: bool = False  # computed by a recorded graph
    problems: Mapping[int, RowProblem] = field(default_factory=dict)  # of these, with grammars that gave no answer


class Runner:
    def __init__(
        self,
        model: Decoder,
        kv: KVCache,
        rows: Rows,
        block_size: int,
        device: torch.device,
        grammars: GrammarService,
        shadow: Shadow,
    ) -> None:
        self.graph = GraphMode(model, kv, rows)
        self._model = model
        self._kv = kv
        self._rows = rows
        self._sampler = Sampler(model.ops, rows)
        self._prompt_scores: dict[int, int] = {}  # of rows that want prompt logprobs: how many of the likeliest
        self._pooling: set[int] = set()  # rows that want their hidden state
        self._block_size = block_size
        self._device = device
        self._grammars = grammars
        self._shadow = shadow
        self._kept: dict[int, Tensor] = {}  # logits [V] of late rows

    @property
    def ops(self) -> Ops:
        return self._model.ops

    def use(self, ops: Ops) -> None:
        """From now on; they read the weights and caches that are there. All rows are forgotten."""
        self.forget_rows()
        ops.fallbacks.update(self._model.ops.fallbacks)
        self._model.ops = ops
        graph = GraphMode(self._model, self._kv, self._rows)
        graph.replayed, graph.eager = self.graph.replayed, self.graph.eager
        self.graph = graph
        self._sampler = Sampler(ops, self._rows)

    def stats(self) -> ExecutionStats:
        return ExecutionStats(
            replayed_steps=self.graph.replayed,
            eager_steps=dict(self.graph.eager),
            op_fallbacks=dict(self._model.ops.fallbacks),
        )

    @torch.inference_mode()
    def launch(self, step: Step) -> RunningStep:
        """Raises KernelMismatch where kernels are to be left, and the step is to be computed again without them."""
        running = RunningStep(step.id, HostCopies(self._device))
        self._apply_changes(step)
        if step.work:
            num_replayed = self.graph.replayed
            try:
                self._compute(step, running)
            except KernelMismatch:
                raise
            except Exception as error:
                if (culprit := self._culprit(step, error)) is not None:
                    raise culprit from error
                raise
            running.replayed = self.graph.replayed > num_replayed
        elif self._kept:
            self._draw(None, (), running, is_idle=True)
        running.copies.close()
        return running

    def result(self, running: RunningStep) -> StepResult:
        """Waits for the step's end."""
        fault_point("runner.result")
        running.copies.wait()
        sampled, failures = self._sampler.take(running.drawn) if running.drawn is not None else ([], [])
        if running.masked_rows:
            problems = running.problems
            failures = [failure for failure in failures if failure.row not in problems]
            failures += [RowFailure(row, problem.why, problem.is_requests_fault) for row, problem in problems.items()]
            sampled = [item for item in sampled if item.row not in problems]
            for item in sampled:
                if item.row in running.masked_rows:
                    self._grammars.advance_row(item.row, item.tokens[0])
            self._grammars.ask_for_masks()  # of the next step: they are filled while that is planned and computed
        if running.pooled is not None:
            states = zip(running.pooled_rows, running.pooled.numpy(), strict=True)
            pooled = {row: state.tobytes() for row, state in states}
            sampled = [replace(item, pooled=pooled.get(item.row, b"")) for item in sampled]
        return StepResult(
            step_id=running.id,
            sampled=tuple(sampled),
            prompt_logprobs=tuple(part.result() for part in running.prompt_logprobs),
            failures=tuple(failures),
            late=running.late,
            replayed=running.replayed,
        )

    def forget_rows(self) -> None:
        """As though no row had ever started: after a step that failed on its way."""
        for row in list(self._rows.held):
            self._end_row(row)
        self._rows.num_unknown = 0

    def _end_row(self, row: int) -> None:
        self._rows.end(row)
        self._sampler.end(row)
        self._prompt_scores.pop(row, None)
        self._pooling.discard(row)
        self._grammars.close_row(row)
        self._kept.pop(row, None)

    def _culprit(self, step: Step, error: Exception) -> KernelMismatch | None:
        """Whom a step that raised can do without. It is computed again op by op, over the same slots; where that goes well,
        the replay is tried once more. What rows have drawn by then is void, and they are to be forgotten."""
        if not self._shadow.is_ops_fault(error):
            return None
        ops, graph = self._model.ops, self.graph
        self._model.ops = self._sampler.ops = self._shadow.blaming(ops)
        self.graph = GraphMode(self._model, self._kv, self._rows)
        try:
            self._compute(step, RunningStep(step.id, HostCopies(self._device)))
        except KernelMismatch as mismatch:
            return mismatch
        except Exception:  # it is none of the ops, or none that another could be put in the place of
            return None
        finally:
            self._model.ops = self._sampler.ops = ops
            self.graph = graph
        return self._replay_that_raises(step)

    def _replay_that_raises(self, step: Step) -> KernelMismatch | None:
        if self.ops.record is None and self.ops.capture is None:
            return None
        try:
            if self._pooling or self.graph.decode(step) is None:
                self.graph.uncounted(self._build(step, step.work))
        except Exception as error:
            if not self._shadow.is_ops_fault(error):
                return None
            subject = CAPTURED if self.ops.capture is not None else RECORDED
            return KernelMismatch(subject, f"in service: {what_was_raised(error)}")
        return None

    def _build(self, step: Step, work: Sequence[RowWork]) -> Batch:
        return build_batch(self._rows, work, self._block_size, self._device, begins=bool(step.starts))

    def _compute(self, step: Step, running: RunningStep) -> None:
        batch = op_by_op = None
        if self._shadow.is_due():
            batch = self._build(step, first_tokens(step.work))
            op_by_op = self._shadow.hidden(self._model, self._kv, batch)
            if len(batch.tokens) < step.num_tokens:
                replayed = self.graph.uncounted(batch)
                self._shadow.hold(replayed, op_by_op, self._model, self._kv, batch, is_captured=False)
                batch = op_by_op = None
        if not self._pooling and (decoded := self.graph.decode(step)) is not None:
            if batch is not None and op_by_op is not None:
                computed = self._model.logits(op_by_op[batch.last])
                self._shadow.hold(decoded.logits, computed, self._model, self._kv, batch, is_captured=True)
            self._draw(decoded.logits, [work.row for work in step.work], running, likeliest=decoded.likeliest)
            return
        fault_point("runner.batch")
        batch = batch or self._build(step, step.work)
        fault_point("runner.forward")
        states = self._last_states(step, batch, op_by_op, running)
        if row_ids := [work.row for work in step.work if work.samples]:
            if self._pooling:
                self._pool(states, row_ids, running)
            fault_point("runner.head")
            self._draw(self._model.logits(states)[: len(row_ids)], row_ids, running)

    def _last_states(self, step: Step, batch: Batch, op_by_op: Tensor | None, running: RunningStep) -> Tensor:
        """Hidden states [at least M, H] of the last tokens of rows that sample, and some behind them; those of all tokens are
        computed only where somebody asks."""
        wanted = self.graph.filled_up(batch.last)
        if op_by_op is None and not self._prompt_scores:
            return self.graph.forward(batch, wanted)
        hidden = self.graph.forward(batch)
        if op_by_op is not None:
            self._shadow.hold(hidden, op_by_op, self._model, self._kv, batch, is_captured=False)
        if self._prompt_scores:
            running.prompt_logprobs = list(self._prompt_logprobs(step.work, hidden, running.copies))
        return hidden[wanted]

    def _pool(self, states: Tensor, row_ids: Sequence[int], running: RunningStep) -> None:
        pooled = {row: states[place] for place, row in enumerate(row_ids) if row in self._pooling}
        if pooled:
            fault_point("runner.pool")
            running.pooled_rows = tuple(pooled)
            running.pooled = running.copies.take(torch.stack([*pooled.values()]).float())

    def _draw(
        self,
        logits: Tensor | None,
        row_ids: Sequence[int],
        running: RunningStep,
        *,
        likeliest: Tensor | None = None,
        is_idle: bool = False,
    ) -> None:
        """Of these rows, and of those that were late before. `is_idle`: nobody else waits for the step."""
        late = self._grammars.wait_for_masks([*row_ids, *self._kept], is_idle=is_idle)
        if late or self._kept:
            row_ids, logits = self._without(late, logits, row_ids)
            likeliest = None
        running.late = tuple(late)
        if logits is None or not row_ids:
            return
        problems = self._grammars.problems
        masks = {row: self._grammars.masks[row] for row in row_ids if self._grammars.has_row(row)}
        if fault_point("runner.logits"):
            logits[0], likeliest = torch.nan, None
        running.drawn = self._sampler.draw(logits, row_ids, masks, running.copies, likeliest)
        running.masked_rows = tuple(masks)
        running.problems = {row: problems[row] for row in masks if row in problems}

    def _without(
        self, late: set[int], logits: Tensor | None, row_ids: Sequence[int]
    ) -> tuple[list[int], Tensor | None]:
        """The rows that can draw, with their logits; those of late rows are kept, in memory of their own."""
        places = {row: place for place, row in enumerate(row_ids)}
        fresh = [row for row in row_ids if row not in late]
        resumed = [row for row in self._kept if row not in late]
        parts = [] if logits is None or not fresh else [logits[[places[row] for row in fresh]]]
        parts += [self._kept.pop(row).unsqueeze(0) for row in resumed]
        if logits is not None:
            self._kept |= {row: logits[places[row]].clone() for row in late if row in places}
        return fresh + resumed, torch.cat(parts) if parts else None

    def _apply_changes(self, step: Step) -> None:
        fault_point("runner.changes")
        for row in step.ends:
            self._end_row(row)
        for start in step.starts:
            self._rows.start(start)
            self._sampler.start(start)
            if start.sampling.prompt_logprobs is not None:
                self._prompt_scores[start.row] = start.sampling.prompt_logprobs
            if start.sampling.pools:
                self._pooling.add(start.row)
            if start.sampling.grammar is not None:
                generated = start.tokens[start.num_prompt_tokens :]
                self._grammars.open_row(start.row, start.sampling.grammar, generated)
        self._grammars.ask_for_masks()
        if step.copies:
            fault_point("runner.copies")
            self._kv.copy_blocks([(copy.src, copy.dst) for copy in step.copies])
        for work in step.work:
            if work.tables:
                self._rows.update_tables(work.row, work.tables)

    def _prompt_logprobs(
        self, work: Sequence[RowWork], hidden: Tensor, copies: HostCopies
    ) -> Iterator[RunningPromptLogprobs]:
        """Position p predicts token p + 1, as long as that is one of the prompt's."""
        offset = 0
        for item in work:
            num_top = self._prompt_scores.get(item.row)
            stop = min(item.start + item.count, int(self._rows.num_prompt_tokens[item.row]) - 1)
            if num_top is not None and stop > item.start:
                fault_point("runner.prompt_logprobs")
                predicted = torch.from_numpy(self._rows.tokens[item.row, item.start + 1 : stop + 1])
                predicted = predicted.to(self._device, non_blocking=True)
                rows = hidden[offset : offset + stop - item.start]
                parts = list(self._scores(rows, predicted, num_top, copies))
                yield RunningPromptLogprobs(item.row, item.start + 1, parts)
            offset += item.count

    def _scores(self, hidden: Tensor, tokens: Tensor, num_top: int, copies: HostCopies) -> Iterator[Logprobs]:
        """Of tokens[i] after hidden[i]. The logits of some are gone before those of the next are made."""
        for some in row_slices(len(tokens), self._model.spec.vocab_size, self._device.type, ROWS_TOGETHER):
            wanted = tokens[some]
            yield Logprobs(self._model.ops, self._model.logits(hidden[some]), wanted, [num_top] * len(wanted), copies)
