"""The engine without its process: scheduler and runner, step by step. The only place that sees both columns."""

from __future__ import annotations

import logging
import time
from collections import deque
from pathlib import Path

import msgspec
import torch

from trivium.config.options import EngineOptions
from trivium.config.resolve import EngineConfig
from trivium.engine.antechamber import Antechamber
from trivium.engine.compile_ahead import AheadCompiler
from trivium.engine.descent import Descent
from trivium.engine.device_memory import SMALLER_MODEL, SMALLER_STEPS, free_memory, memory_for
from trivium.engine.plan import StartPlan, ops_of, plan_start, scheduler_limits
from trivium.engine.report import report_start
from trivium.engine.step_failures import StepFailures, what_happened
from trivium.engine.warm_up import warm_up
from trivium.execute.rows import Rows
from trivium.execute.runner import Runner, RunningStep
from trivium.execute.sampler import why_host_is_needed
from trivium.execute.shadow import KernelMismatch
from trivium.faults import fault_point
from trivium.grammar.service import GrammarService
from trivium.models.decoder import Decoder
from trivium.models.kv_cache import KVCache
from trivium.models.load import load_model, random_model
from trivium.models.spec import ModelSpec
from trivium.platform.known_errors import Reaction
from trivium.schedule.scheduler import Scheduler, SchedulerStats
from trivium.schedule.snapshot import Snapshot
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import InvalidRequestError, RequestFailedError, TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.grammar_stats import GrammarStats
from trivium.types.report import Report
from trivium.types.request import Request
from trivium.types.start_progress import StartClock, StartProgress, StartStage, TellProgress, tell_nobody

log = logging.getLogger(__name__)

# Of the cache, beyond what was ever used: prompts of some thousand tokens for small models, of some hundred for large ones.
AHEAD_BYTES = 64 << 20


class EngineCore:
    """`options.model` is a path on this machine: a directory or a .gguf file."""

    def __init__(
        self, options: EngineOptions, tell: TellProgress = tell_nobody, compiler: AheadCompiler | None = None
    ) -> None:
        """`compiler`: compiles beside the start what the kernels will need, where they need that."""
        clock = StartClock(tell)
        clock(StartProgress(StartStage.PLANNING))
        plan = plan_start(options)
        self.config, spec, ops = plan.config, plan.spec, plan.ground.ops
        options = self.config.options  # as the platform can serve them
        if compiler is not None and ops.compiles_for is not None and spec.quantization is None:
            compiler.begin(self.config, ops.compiles_for)
        clock(StartProgress(StartStage.DEVICE))
        plan.ground.open_device()
        self._spec = spec
        platform = self._platform = plan.ground.platform
        with memory_for("the weights", plan.weights.own_bytes, platform, SMALLER_MODEL):
            model = _build_model(plan, clock)
        platform.give_back_unused()  # what loading needed beside the weights
        clock(StartProgress(StartStage.CACHE))
        if plan.ground.capabilities.memory_is_dedicated:
            self.config = plan.resolve_again()
        self.grammars = GrammarService(
            options.model,
            spec.vocab_size,
            spec.eos_ids,
            num_rows=options.max_num_seqs,
            num_threads=max(1, self.config.num_threads // 4),
        )
        self._antechamber = Antechamber(self.grammars)
        self._cancelled_early: list[Delta] = []  # in the antechamber; not yet told
        device = torch.device(self.config.device)
        self._rows = Rows(options.max_num_seqs, self.config.max_model_len, self.config.kv, device)
        cache_bytes = self.config.num_blocks * self.config.kv.bytes_per_block
        with memory_for("keys and values", cache_bytes, platform, "lower kv_cache_bytes"):
            kv = self._kv = KVCache(self.config.kv, self.config.num_blocks, ops.kv_layout, device)
        self._descent = Descent(plan.ground, ops_of(spec))
        block_size, shadow = self.config.kv.block_size, self._descent.shadow
        clock(StartProgress(StartStage.RECORDING))
        with memory_for("the values of a step", self.config.step_bytes, platform, SMALLER_STEPS):
            self._runner = Runner(model, kv, self._rows, block_size, device, self.grammars, shadow)
        self._running: deque[RunningStep] = deque()  # oldest first
        self._failures = StepFailures(plan.ground.known_errors)
        self._profile = plan.ground.step_profile()
        if ops.compiles_at_first_use:
            clock(StartProgress(StartStage.WARM_UP))
            try:
                with memory_for("the values of a step", self.config.step_bytes, platform, SMALLER_STEPS):
                    warm_up(self.config, self._runner, spec.vocab_size)
            except KernelMismatch as mismatch:
                self._leave(mismatch)
            self._runner.graph.count_anew()
        compiled_ahead = compiler.end() if compiler is not None else ""
        report = report_start(
            plan, self.config, model, kv, self._rows, self._runner.graph, clock.passed(), compiled_ahead
        )
        log.debug("the start took %s; %s", clock, compiled_ahead)
        self.card = _card(self.config, spec, report)
        self._scheduler = Scheduler(
            scheduler_limits(self.config),
            self.config.kv,
            self.config.num_blocks,
            needs_host=lambda request: why_host_is_needed(request.sampling),
        )

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._antechamber or self._cancelled_early)

    def add(self, request: Request) -> None:
        """Takes the request into the queue, or raises an error that says why it never could be.

        One with a grammar comes into the queue when that is ready; why it cannot be is then told by `take_refusals`.
        """
        fault_point("core.check", request.id)
        _check_token_ids(request, self.card.vocab_size)
        if request.sampling.grammar is None:
            self._enqueue(request)
            return
        if request.id in self._antechamber:
            raise InvalidRequestError(f"a request with the id {request.id!r} is already being served", param="id")
        self._scheduler.check(request)
        fault_point("antechamber.enter", request.id)
        self._antechamber.enter(request)

    def _enqueue(self, request: Request, grammar_seconds: float = 0.0) -> None:
        fixed_up_to = self._spec.rope.fixed_up_to
        if fixed_up_to is not None and len(request.prompt) > fixed_up_to:
            # The keys depend on the prompt's length, so only a prompt of the same length may reuse them.
            request = msgspec.structs.replace(request, salt=f"{request.salt}\0{len(request.prompt)}")
        self._scheduler.add(request, time.monotonic(), grammar_seconds)

    def _admit_prepared(self) -> None:
        for visitor in self._antechamber.leave(idle=not self._scheduler.has_work):
            request = visitor.request
            try:
                fault_point("antechamber.admit", request.id)
                self._enqueue(request, time.monotonic() - visitor.entered)
            except TriviumError as error:
                self._antechamber.refuse(request, error)
                continue
            except Exception as error:
                log.exception("%s could not be queued", request.id)
                self._antechamber.refuse(request, RequestFailedError(what_happened(type(error).__name__)))
                continue
            for index in visitor.cancelled:
                self._scheduler.cancel(request.id, index, time.monotonic())

    def cancel(self, request_id: str, index: int | None = None) -> None:
        if request_id in self._antechamber:
            self._cancelled_early += self._antechamber.cancel(request_id, index)
        else:
            self._scheduler.cancel(request_id, index, time.monotonic())

    def preempt(self, request_id: str) -> None:
        """Gives the request's blocks back now; it resumes where it was when there is room."""
        self._scheduler.preempt(request_id)

    def take_refusals(self) -> list[tuple[str, TriviumError]]:
        """Requests that were taken and then could not be served, by id; each is told once."""
        return self._antechamber.take_refusals()

    def step(self) -> list[Delta]:
        """Launches the next step, and takes in the oldest if more are running than may, or if there is none to launch."""
        self._admit_prepared()
        cancelled, self._cancelled_early = self._cancelled_early, []
        fault_point("core.plan")
        step = self._scheduler.plan(time.monotonic())
        self._profile.before_step()
        if step is None and not self._running:
            return cancelled + self._scheduler.take_deltas()
        try:
            if step is not None:
                self._running.append(self._runner.launch(step))
                if len(self._running) <= self.config.steps_ahead:
                    return cancelled
            result = self._runner.result(self._running.popleft())
        except KernelMismatch as mismatch:
            self._demote(mismatch)
            return cancelled
        except Exception as error:
            return cancelled + self._give_up(error)
        self._failures.succeeded()
        fault_point("core.commit")
        return cancelled + self._scheduler.commit(result, time.monotonic())

    def _demote(self, mismatch: KernelMismatch) -> None:
        """Kernels that lie or raise are left; everything is computed again, from the tokens that were told."""
        self._running.clear()
        self._leave(mismatch)
        self._scheduler.recall(time.monotonic())

    def _leave(self, mismatch: KernelMismatch) -> None:
        self._runner.use(self._descent.leave(self._runner.ops, mismatch))

    def _give_up(self, error: Exception) -> list[Delta]:
        """The steps that run are given up; raises the error again where nothing can be expected of later ones."""
        now = time.monotonic()
        reaction = self._failures.react(error, now)
        again = "it is computed again" if reaction is Reaction.RETRY else "who had a part in it is run again, alone"
        log.error("a step failed and is given up; %s", again, exc_info=error)
        self._running.clear()
        self._runner.forget_rows()
        if isinstance(error, torch.OutOfMemoryError):
            self._platform.give_back_unused()  # in pieces too small for what was asked
            log.error("the step had too little memory: %s", free_memory(self._platform.capabilities()))
        if reaction is Reaction.RETRY:
            self._scheduler.recall(now)
            return []
        return self._scheduler.abandon(what_happened(self._failures.sentence(error)), now)

    def prepare(self) -> bool:
        """Memory for the tokens that come next, so that they need not wait for it."""
        return self._kv.fetch_pages(self._scheduler.blocks_ahead(AHEAD_BYTES))

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def grammar_stats(self) -> GrammarStats:
        return self._antechamber.stats()

    def execution_stats(self) -> ExecutionStats:
        return msgspec.structs.replace(self._runner.stats(), demotions=self._descent.demotions)

    def assert_balanced(self) -> None:
        """Recounts blocks and rows from their owners, here and on the device."""
        self._scheduler.assert_balanced()
        if (held := len(self._rows.held)) < (running := self.stats().running):
            raise AssertionError(f"{running} sequences run, and the device holds {held} rows")


def _build_model(plan: StartPlan, tell: TellProgress) -> Decoder:
    tell(StartProgress(StartStage.WEIGHTS))
    config = plan.config
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    if config.options.load_format == "dummy":
        seed = config.options.seed or 0
        return random_model(plan.spec, plan.ground.ops, dtype, device, seed=seed, max_position=config.max_model_len)

    def told(done: int, total: int) -> None:
        tell(StartProgress(StartStage.WEIGHTS, done, total))

    return load_model(plan.source, plan.ground.ops, dtype, device, told, config.max_model_len, plan.packed, plan.form)


def _card(config: EngineConfig, spec: ModelSpec, report: Report) -> ModelCard:
    return ModelCard(
        name=config.options.served_model_name or Path(config.options.model).name.removesuffix(".gguf"),
        path=config.options.model,
        family=spec.family,
        dtype=config.dtype,
        kv_cache_dtype=config.kv.dtype,
        max_model_len=config.max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_ids,
        block_size=config.kv.block_size,
        num_blocks=config.num_blocks,
        num_kv_groups=len(config.kv.groups),
        report=report,
    )


def _check_token_ids(request: Request, vocab_size: int) -> None:
    """An id beyond the tables would be read out of bounds, on some devices for all rows of the step."""
    sampling = request.sampling
    for param, ids in (
        ("prompt", request.prompt),
        ("logit_bias", tuple(token for token, _ in sampling.logit_bias)),
        ("bad_words", tuple(token for word in sampling.bad_words for token in word)),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("stop_token_ids", request.stopping.stop_token_ids),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            wrong = next(token for token in ids if not 0 <= token < vocab_size)
            raise InvalidRequestError(f"token id {wrong} is outside the vocabulary of {vocab_size}", param=param)
