"""An engine core without a model: the real scheduler over a device whose next token is a function of id and position."""

from __future__ import annotations

import os
import time
import zlib

from trivium.config.options import EngineOptions
from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.scheduler import Scheduler
from trivium.schedule.snapshot import Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import DeviceUnfitError, ModelFileError, TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.grammar_stats import GrammarStats
from trivium.types.kv import KVSpec, group_layers
from trivium.types.request import Request
from trivium.types.start_progress import StartProgress, StartStage, TellProgress
from trivium.types.step import RowFailure, RowStart, SampledRow, Step, StepResult

VOCAB_SIZE = 256
UNFIT_DEVICE = 250  # a prompt that begins with it: no process can use the device any more
BAD_ROW = 251  # a prompt that begins with it: the row fails
BAD_STEP = 252  # … the whole step raises
BAD_ADD = 253  # … the request cannot be taken in
HARD_EXIT = 254  # … the process ends without a word
ENDLESS = 30_000  # tokens, a minute of them: no request for so many ends before its test, though that be held up


def next_token(request_id: str, index: int, position: int) -> int:
    return zlib.crc32(f"{request_id}/{index}/{position}".encode()) % 200


class EchoCore:
    """`model` "missing" cannot be loaded, "broken" fails to load in an unforeseen way, a path ending in ".held" is loaded
    when there is such a file; others run."""

    step_seconds = 0.002
    max_model_len = 32768

    def __init__(self, options: EngineOptions, tell: TellProgress) -> None:
        if options.model == "missing":
            raise ModelFileError("there is no model called 'missing'")
        if options.model == "broken":
            raise ZeroDivisionError("nobody foresaw this")
        if options.model.endswith(".held"):
            tell(StartProgress(StartStage.WEIGHTS, done=3 * 10**9, total=16 * 10**9))
            while not os.path.exists(options.model):
                time.sleep(0.01)
        num_blocks, max_model_len = 4096, self.max_model_len
        self.card = ModelCard(
            name="echo",
            path=options.model,
            family="echo",
            dtype="float32",
            max_model_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(255,),
            block_size=16,
            num_blocks=num_blocks,
        )
        kv = KVSpec(16, group_layers([None]), num_kv_heads=1, head_dim=1, dtype="float32")
        limits = SchedulerLimits(
            max_rows=8, max_batch_tokens=512, max_model_len=max_model_len, max_waiting=options.max_waiting
        )
        self._scheduler = Scheduler(limits, kv, num_blocks)
        self._rows: dict[int, RowStart] = {}

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        if request.prompt[:1] == (BAD_ADD,):
            raise KeyError("unforeseen")
        self._scheduler.add(request, time.monotonic())

    def cancel(self, request_id: str, index: int | None = None) -> None:
        self._scheduler.cancel(request_id, index, time.monotonic())

    def step(self) -> list[Delta]:
        step = self._scheduler.plan(time.monotonic())
        if step is None:
            return self._scheduler.take_deltas()
        time.sleep(self.step_seconds)
        deltas = self._scheduler.commit(self._run(step), time.monotonic())
        self._scheduler.assert_balanced()
        return deltas

    def take_refusals(self) -> list[tuple[str, TriviumError]]:
        return []

    def prepare(self) -> bool:
        return False

    def grammar_stats(self) -> GrammarStats:
        return GrammarStats()

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def execution_stats(self) -> ExecutionStats:
        return ExecutionStats()

    def _run(self, step: Step) -> StepResult:
        for row in step.ends:
            del self._rows[row]
        for start in step.starts:
            self._rows[start.row] = start
        sampled, failures = [], []
        for work in step.work:
            start = self._rows[work.row]
            match start.tokens[0]:
                case 250:
                    raise DeviceUnfitError("the memory is broken")
                case 251:
                    failures.append(RowFailure(work.row, "logits are not numbers"))
                case 252:
                    raise RuntimeError("the device is on fire")
                case 254:
                    os._exit(9)
                case _ if work.samples:
                    token = next_token(start.request_id, start.index, work.start + work.count)
                    sampled.append(SampledRow(work.row, (token,)))
        return StepResult(step.id, tuple(sampled), failures=tuple(failures))
