"""An engine without a model: it says back what stands in the prompt between the last `<|say|>` and `<|said|>`, and ends.

The scheduler is the real one. So a test decides, token by token, what the model answers; and with `<|slowly|>` in the prompt,
that an answer of many tokens is still under way however long the test is held up.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from trivium.config.options import EngineOptions
from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.scheduler import Scheduler
from trivium.schedule.snapshot import Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.grammar_stats import GrammarStats
from trivium.types.kv import KVSpec, group_layers
from trivium.types.request import Request
from trivium.types.start_progress import TellProgress
from trivium.types.step import RowStart, SampledRow, Step, StepResult, TokenLogprobs

CONTEXT = 4096  # unless the options say otherwise
BLOCK_SIZE = 16
SAY, SAID, SLOWLY, END = "<|say|>", "<|said|>", "<|slowly|>", "<|im_end|>"
SLOW_SECONDS = 0.03  # a token


class ParrotCore:
    def __init__(self, options: EngineOptions, tell: TellProgress) -> None:
        added = json.loads((Path(options.model) / "tokenizer.json").read_text())
        ids = {token["content"]: token["id"] for token in added["added_tokens"]}
        self._say, self._said, self._slowly, self._end = ids[SAY], ids[SAID], ids[SLOWLY], ids[END]
        vocab_size = max(max(added["model"]["vocab"].values()), *ids.values()) + 1
        context = options.max_model_len or CONTEXT
        num_blocks = max(1024, context // BLOCK_SIZE)
        self.card = ModelCard(
            name=options.served_model_name or "parrot",
            path=options.model,
            family="parrot",
            dtype="float32",
            max_model_len=context,
            vocab_size=vocab_size,
            eos_token_ids=(self._end,),
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
        )
        kv = KVSpec(BLOCK_SIZE, group_layers([None]), num_kv_heads=1, head_dim=1, dtype="float32")
        limits = SchedulerLimits(max_rows=8, max_batch_tokens=2048, max_model_len=context, max_waiting=64)
        self._scheduler = Scheduler(limits, kv, num_blocks)
        self._rows: dict[int, RowStart] = {}

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        self._scheduler.add(request, time.monotonic())

    def cancel(self, request_id: str, index: int | None = None) -> None:
        self._scheduler.cancel(request_id, index, time.monotonic())

    def step(self) -> list[Delta]:
        step = self._scheduler.plan(time.monotonic())
        if step is None:
            return self._scheduler.take_deltas()
        deltas = self._scheduler.commit(self._run(step), time.monotonic())
        self._scheduler.assert_balanced()
        return deltas

    def take_refusals(self) -> list[tuple[str, TriviumError]]:
        return []

    def execution_stats(self) -> ExecutionStats:
        return ExecutionStats()

    def prepare(self) -> bool:
        return False

    def grammar_stats(self) -> GrammarStats:
        return GrammarStats()

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def _run(self, step: Step) -> StepResult:
        for row in step.ends:
            del self._rows[row]
        for start in step.starts:
            self._rows[start.row] = start
        if any(self._slowly in self._rows[work.row].tokens for work in step.work):
            time.sleep(SLOW_SECONDS)
        sampled = []
        for work in step.work:
            if work.samples:
                start = self._rows[work.row]
                token = self._next(start, work.start + work.count)
                logprobs = (
                    () if start.sampling.logprobs is None else (TokenLogprobs(token, -0.5, 1, (token,), (-0.5,)),)
                )
                sampled.append(SampledRow(work.row, (token,), logprobs))
        return StepResult(step.id, tuple(sampled))

    def _next(self, start: RowStart, position: int) -> int:
        prompt = start.tokens[: start.num_prompt_tokens]
        begin = len(prompt) - prompt[::-1].index(self._say)
        answer = prompt[begin : prompt.index(self._said, begin)]
        place = position - start.num_prompt_tokens
        return answer[place] if place < len(answer) else self._end
