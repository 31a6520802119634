"""The engine of an encoder without its process: scheduler and runner, step by step."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from trivium.config.options import EngineOptions
from trivium.config.resolve import activation_dtype
from trivium.config.resolve_encoder import EncoderConfig, resolve_encoder
from trivium.execute.encoder_runner import WHY_EAGER, EncoderRunner
from trivium.formats.home import default_root
from trivium.formats.huggingface import HFDirectory
from trivium.formats.packed_file import FOLDER
from trivium.kernels.ops import Ops
from trivium.kernels.select import select_ops
from trivium.models.encoder import Encoder
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_registry import read_encoder_spec
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.load_encoder import load_encoder, random_encoder
from trivium.models.packed_weights import NoPackedWeights, PackedWeights, packed_weights
from trivium.platform.select import select_platform
from trivium.schedule.encoder_scheduler import EncoderScheduler
from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.snapshot import Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import InvalidRequestError, TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.facts import EncoderFacts
from trivium.types.grammar_stats import GrammarStats
from trivium.types.request import Request

OPS_OF_ENCODERS = ("embed", "linear")


class EncoderCore:
    def __init__(self, options: EngineOptions, source: HFDirectory, family: EncoderFamily) -> None:
        platform = select_platform(options.device).platform
        capabilities = platform.capabilities()
        spec = read_encoder_spec(source, family)
        facts = EncoderFacts(spec.max_position, spec.trained_length, spec.dtype)
        self.config = resolve_encoder(options, facts, capabilities)
        dtype = activation_dtype(options, capabilities)
        ops = select_ops(options.kernels, capabilities.device, self.config.num_threads, dtype)
        platform.open(num_threads=1 if ops.has_own_threads else self.config.num_threads)
        packed = _packed_weights(options, source, ops)
        self._runner = EncoderRunner(_build_model(self.config, source, family, spec, ops, packed))
        self._scheduler = EncoderScheduler(
            SchedulerLimits(
                max_rows=options.max_num_seqs,
                max_batch_tokens=self.config.max_batched_tokens,
                max_background_tokens=self.config.max_background_tokens,
                max_model_len=self.config.max_model_len,
                max_waiting=options.max_waiting,
            )
        )
        self.card = _card(self.config, spec, ops, packed)

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
        self._scheduler.add(request)

    def cancel(self, request_id: str, index: int | None = None) -> None:
        self._scheduler.cancel(request_id)

    def take_refusals(self) -> list[tuple[str, TriviumError]]:
        return []

    def step(self) -> list[Delta]:
        step = self._scheduler.plan(time.monotonic())
        if step is None:
            return self._scheduler.take_deltas()
        return self._scheduler.commit(self._runner.run(step), time.monotonic())

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def snapshot(self) -> Snapshot:
        return Snapshot()  # its requests last one step, and leave nothing in a cache

    def grammar_stats(self) -> GrammarStats:
        return GrammarStats()

    def execution_stats(self) -> ExecutionStats:
        return self._runner.stats()


def _packed_weights(options: EngineOptions, source: HFDirectory, ops: Ops) -> PackedWeights:
    if options.load_format == "dummy":
        return NoPackedWeights()
    return packed_weights(default_root() / FOLDER, options.packed_cache_bytes, source, ops.packing)


def _build_model(
    config: EncoderConfig,
    source: HFDirectory,
    family: EncoderFamily,
    spec: EncoderSpec,
    ops: Ops,
    packed: PackedWeights,
) -> Encoder:
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    if config.options.load_format == "dummy":
        return random_encoder(spec, ops, dtype, device, seed=config.options.seed or 0)
    return load_encoder(source, family, ops, dtype, device, packed)


def _card(config: EncoderConfig, spec: EncoderSpec, ops: Ops, packed: PackedWeights) -> ModelCard:
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
        kernels=tuple(f"{op}: {ops.providers[op].name} ({ops.providers[op].reason})" for op in OPS_OF_ENCODERS),
        packed=packed.state,
        graph=f"none: {WHY_EAGER}",
        adjustments=config.adjustments,
    )
