"""The plan of an encoder's start, and its report: as `plan` and `report` are for models that go on with texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from msgspec.structs import replace

from trivium.config.options import EngineOptions
from trivium.config.resolve_encoder import EncoderConfig, resolve_encoder
from trivium.engine.plan import Ground, choose_platform, lay_ground, packed_weights_of
from trivium.engine.report import STEP, WEIGHTS, describe_platform, fallbacks_of, kernels_of, process_use, weight_use
from trivium.execute.encoder_runner import WHY_EAGER
from trivium.formats.huggingface import HFDirectory
from trivium.kernels.ops import ENCODER_OPS
from trivium.models.encoder import Encoder
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_registry import read_encoder_spec
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.load_encoder import encoder_weight_memory, locate_encoder_weights, random_encoder_memory
from trivium.models.packed_weights import PackedWeights
from trivium.models.step_memory import EncoderStepMemory
from trivium.models.weight_form import as_stored
from trivium.models.weight_memory import WeightMemory
from trivium.platform.host_memory import resident_bytes
from trivium.types.errors import ConfigError
from trivium.types.facts import EncoderFacts, ModelFacts
from trivium.types.report import Happened, MemoryUse, ModelReport, Report
from trivium.types.start_progress import StagePassed

OPS_OF_ENCODERS = ("embed", "linear", *ENCODER_OPS)
GRAPH = f"none: {WHY_EAGER}"
SERVING_BYTES = 20 << 20  # scheduler, lines to clients, threads: as measured once engines ran


@dataclass(frozen=True)
class EncoderPlan:
    ground: Ground
    source: HFDirectory
    family: EncoderFamily
    spec: EncoderSpec
    packed: PackedWeights
    weights: WeightMemory
    step: EncoderStepMemory
    config: EncoderConfig

    @property
    def step_bytes(self) -> int:
        return self.step.most_bytes(self.config.max_batched_tokens, self.config.max_model_len)


def plan_encoder(options: EngineOptions, source: HFDirectory, family: EncoderFamily) -> EncoderPlan:
    """From headers alone. Raises the TriviumError of the first thing that keeps the engine from running."""
    selection = choose_platform(options.device)
    spec = read_encoder_spec(source, family)
    ground = lay_ground(selection, options, _model_facts(spec), OPS_OF_ENCODERS)
    form = as_stored(
        ground.options.weight_form, ground.options.accept_adjustments, "those of an encoder stay as they are stored"
    )
    packed = packed_weights_of(ground.options, source, ground.ops, form)
    weights = _weight_memory(ground, source, family, spec, packed)
    if not ground.capabilities.memory_is_dedicated and weights.own_bytes > (room := ground.capabilities.memory_bytes):
        numbers = f"the weights take {weights.own_bytes >> 20} MiB, and the process may use {room >> 20} MiB"
        raise ConfigError(f"{numbers}: take a smaller model")
    facts = EncoderFacts(spec.max_position, spec.trained_length, spec.dtype)
    config = resolve_encoder(ground.options, facts, ground.capabilities)
    config = replace(config, adjustments=ground.adjustments + form.chosen + config.adjustments)
    device = torch.device(ground.capabilities.device).type
    step = EncoderStepMemory(spec, ground.ops, getattr(torch, config.dtype), device, config.num_threads)
    return EncoderPlan(ground, source, family, spec, packed, weights, step, config)


def report_encoder(plan: EncoderPlan) -> Report:
    config = plan.config
    return Report(
        platform=describe_platform(plan.ground.selection),
        model=ModelReport(
            path=config.options.model,
            family=plan.spec.family,
            weights=plan.spec.dtype,
            dtype=config.dtype,
            kv_cache_dtype="",
            max_model_len=config.max_model_len,
            block_size=0,
            num_blocks=0,
        ),
        kernels=kernels_of(plan.ground.ops, OPS_OF_ENCODERS),
        graph=GRAPH,
        memory=(weight_use(plan.weights), _step_use(plan), process_use(plan.ground, SERVING_BYTES)),
        fallbacks=fallbacks_of(plan.ground, OPS_OF_ENCODERS, None),
        adjustments=config.adjustments,
    )


def report_encoder_start(plan: EncoderPlan, model: Encoder, start: tuple[StagePassed, ...]) -> Report:
    planned = report_encoder(plan)
    used = {WEIGHTS: model.weight_bytes}
    return replace(
        planned,
        memory=tuple(replace(item, used_bytes=used.get(item.what)) for item in planned.memory),
        happened=Happened(
            kernels=kernels_of(model.ops, OPS_OF_ENCODERS),
            graph=GRAPH,
            packed=plan.packed.state,
            resident_bytes=resident_bytes(),
            resident_before_bytes=plan.ground.process_bytes,
            start=start,
        ),
    )


def _step_use(plan: EncoderPlan) -> MemoryUse:
    return MemoryUse(STEP, plan.step_bytes, f"values of {plan.config.max_batched_tokens} tokens")


def _model_facts(spec: EncoderSpec) -> ModelFacts:
    return ModelFacts(
        windows=(None,) * spec.num_layers,
        num_kv_heads=spec.num_heads,
        head_dim=spec.head_dim,
        max_position=spec.max_position,
        checkpoint_dtype=spec.dtype,
        vocab_size=spec.vocab_size,
    )


def _weight_memory(
    ground: Ground, source: HFDirectory, family: EncoderFamily, spec: EncoderSpec, packed: PackedWeights
) -> WeightMemory:
    dtype = getattr(torch, ground.dtype)
    if ground.options.load_format == "dummy":
        return random_encoder_memory(spec, ground.ops, dtype)
    located = locate_encoder_weights(source, family)
    return encoder_weight_memory(located, ground.ops, dtype, ground.capabilities.device, packed.has)
