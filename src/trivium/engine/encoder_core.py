"""The engine of an encoder without its process: scheduler and runner, step by step."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch
from msgspec.structs import replace

from trivium.config.options import EngineOptions
from trivium.config.resolve_encoder import EncoderConfig
from trivium.engine.descent import Descent
from trivium.engine.plan_encoder import OPS_OF_ENCODERS, EncoderPlan, plan_encoder, report_encoder_start
from trivium.engine.step_failures import StepFailures, what_happened
from trivium.execute.encoder_runner import EncoderRunner
from trivium.execute.shadow import KernelMismatch
from trivium.formats.huggingface import HFDirectory
from trivium.models.encoder import Encoder
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.load_encoder import load_encoder, random_encoder
from trivium.platform.known_errors import Reaction
from trivium.schedule.encoder_scheduler import EncoderScheduler
from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.snapshot import Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import InvalidRequestError, TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.grammar_stats import GrammarStats
from trivium.types.report import Report
from trivium.types.request import Request
from trivium.types.start_progress import StartClock, StartProgress, StartStage, TellProgress, tell_nobody

log = logging.getLogger(__name__)


class EncoderCore:
    def __init__(
        self, options: EngineOptions, source: HFDirectory, family: EncoderFamily, tell: TellProgress = tell_nobody
    ) -> None:
        clock = StartClock(tell)
        clock(StartProgress(StartStage.PLANNING))
        plan = plan_encoder(options, source, family)
        self.config, options = plan.config, plan.ground.options
        clock(StartProgress(StartStage.DEVICE))
        plan.ground.open_device()
        clock(StartProgress(StartStage.WEIGHTS))
        model = _build_model(plan)
        plan.ground.platform.give_back_unused()  # what loading needed beside the weights
        clock(StartProgress(StartStage.RECORDING))
        self._descent = Descent(plan.ground, OPS_OF_ENCODERS)
        self._runner = EncoderRunner(model, self._descent.shadow)
        self._failures = StepFailures(plan.ground.known_errors)
        self._profile = plan.ground.step_profile()
        self._scheduler = EncoderScheduler(
            SchedulerLimits(
                max_rows=options.max_num_seqs,
                max_batch_tokens=self.config.max_batched_tokens,
                max_background_tokens=self.config.max_background_tokens,
                max_model_len=self.config.max_model_len,
                max_waiting=options.max_waiting,
            )
        )
        self.card = _card(self.config, plan.spec, report_encoder_start(plan, model, clock.passed()))

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Takes the request into the queue, or raises an error that says why it never could be."""
        wrong = [token for token in request.prompt if not 0 <= token < self.card.vocab_size]
        if wrong:
            raise InvalidRequestError(
                f"token id {wrong[0]} is outside the vocabulary of {self.card.vocab_size}", param="prompt"
            )
        self._scheduler.add(request, time.monotonic())

    def cancel(self, request_id: str, index: int | None = None) -> None:
        self._scheduler.cancel(request_id, time.monotonic())

    def take_refusals(self) -> list[tuple[str, TriviumError]]:
        return []

    def step(self) -> list[Delta]:
        step = self._scheduler.plan(time.monotonic())
        self._profile.before_step()
        if step is None:
            return self._scheduler.take_deltas()
        try:
            result = self._runner.run(step)
        except KernelMismatch as mismatch:
            self._runner.use(self._descent.leave(self._runner.ops, mismatch))
            self._scheduler.recall()
            return []
        except Exception as error:
            return self._give_up(error)
        self._failures.succeeded()
        return self._scheduler.commit(result, time.monotonic())

    def _give_up(self, error: Exception) -> list[Delta]:
        """Of this step; raises the error again where nothing can be expected of later ones."""
        now = time.monotonic()
        if self._failures.react(error, now) is Reaction.RETRY:
            log.error("a step failed and is computed again", exc_info=error)
            self._scheduler.recall()
            return []
        log.error("a step failed and is given up; who had a part in it is run again, alone", exc_info=error)
        return self._scheduler.abandon(what_happened(self._failures.sentence(error)), now)

    def prepare(self) -> bool:
        return False

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def snapshot(self) -> Snapshot:
        return Snapshot()  # its requests last one step, and leave nothing in a cache

    def grammar_stats(self) -> GrammarStats:
        return GrammarStats()

    def execution_stats(self) -> ExecutionStats:
        return replace(self._runner.stats(), demotions=self._descent.demotions)


def _build_model(plan: EncoderPlan) -> Encoder:
    config, ops = plan.config, plan.ground.ops
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    if config.options.load_format == "dummy":
        return random_encoder(plan.spec, ops, dtype, device, seed=config.options.seed or 0)
    return load_encoder(plan.source, plan.family, ops, dtype, device, plan.packed)


def _card(config: EncoderConfig, spec: EncoderSpec, report: Report) -> ModelCard:
    return ModelCard(
        name=config.options.served_model_name or Path(config.options.model).name,
        path=config.options.model,
        family=spec.family,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=(),
        block_size=0,
        num_blocks=0,
        task="score" if spec.num_labels else "embed",
        vector_size=spec.vector_size,
        report=report,
    )
