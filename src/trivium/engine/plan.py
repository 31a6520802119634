"""Everything that is decided before a weight is read: by headers, options, and what the platform says.

The engine starts from a plan, and `doctor` prints one: there is no other place where these things are decided.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from msgspec.structs import replace

from trivium.config.environment import check_environment, check_plugin_environment
from trivium.config.options import EngineOptions
from trivium.config.resolve import EngineConfig, activation_dtype, resolve
from trivium.config.settlement import Settlement, settle_with_platform, wish_of
from trivium.engine.device_memory import SMALLER_MODEL, lack_of_memory
from trivium.engine.platform_limits import decisions_of, within_graphs
from trivium.engine.rungs import Standing, refuse_below, refuse_by_batch, stand
from trivium.engine.step_profile import StepProfile
from trivium.engine.trial import TrialRequest
from trivium.formats.gguf import GGUFFile
from trivium.formats.home import default_root
from trivium.formats.packed_file import FOLDER
from trivium.formats.source import ModelSource, open_source
from trivium.kernels.ops import ENCODER_OPS, OP_NAMES, Ops
from trivium.kernels.select import select_ops
from trivium.models.locate import locate_weights
from trivium.models.packed_weights import NoPackedWeights, PackedWeights, packed_weights
from trivium.models.registry import read_spec
from trivium.models.spec import ModelSpec
from trivium.models.step_memory import StepMemory
from trivium.models.weight_form import WeightForm, as_stored, choose_form
from trivium.models.weight_memory import WeightMemory, random_weight_memory, weight_memory
from trivium.models.weights import weight_shapes
from trivium.platform.contract import Answer, Platform, PlatformLimits
from trivium.platform.host_memory import resident_bytes
from trivium.platform.known_errors import KnownErrors, Reaction
from trivium.platform.plugins import installed_plugins
from trivium.platform.select import Selection, is_in_tree, select_platform
from trivium.schedule.limits import SchedulerLimits
from trivium.types.decisions import Wish
from trivium.types.errors import ConfigError, TriviumError
from trivium.types.facts import Adjustment, Capabilities, ModelFacts

T = TypeVar("T")

SPARSE_OPS, DENSE_OPS = ("route", "experts"), ("gated",)  # that only such layers call


@dataclass(frozen=True)
class Ground:
    """What a start stands on: the platform that was chosen, and the options and facts as it can serve them."""

    selection: Selection
    capabilities: Capabilities
    options: EngineOptions
    facts: ModelFacts
    adjustments: tuple[Adjustment, ...]
    dtype: str  # of activations
    ops: Ops
    problems: tuple[str, ...]  # what of the kernels is not used, and why
    process_bytes: int  # that this process had before any weight
    known_errors: KnownErrors  # the platform's own

    @property
    def platform(self) -> Platform:
        return self.selection.platform

    def step_profile(self) -> StepProfile:
        told = asked(self.platform, "running", self.platform.running).profiling
        return StepProfile(self.options.profile_steps, told, default_root())

    def open_device(self) -> None:
        """Takes it for this process. Threads are torch's; ops with threads of their own would only compete with them."""
        num_threads = 1 if self.ops.has_own_threads else self.options.num_threads or self.capabilities.num_threads
        asked(self.platform, "its device", self.platform.open, num_threads)


@dataclass(frozen=True)
class StartPlan:
    ground: Ground
    source: ModelSource
    spec: ModelSpec
    facts: ModelFacts
    packed: PackedWeights
    form: WeightForm
    weights: WeightMemory
    kv_dtypes: tuple[str, ...]
    step: StepMemory
    config: EngineConfig

    def resolve_again(self) -> EngineConfig:
        """Once the weights lie on a device of their own: the cache takes what they have left."""
        platform = self.ground.platform
        platform.give_back_unused()
        config = resolve(
            self.config.options,
            self.facts,
            platform.capabilities(),
            self.kv_dtypes,
            self.step.most_bytes,
        )
        longest = min(config.max_model_len, self.config.max_model_len)  # for which the model was built
        said = self.ground.adjustments + self.form.chosen + config.adjustments
        return replace(config, max_model_len=longest, adjustments=said)


def plan_start(options: EngineOptions) -> StartPlan:
    """`options.model` is a path on this machine: a directory or a .gguf file. Raises the TriviumError of the first thing
    that keeps the engine from running."""
    selection = choose_platform(options.device)
    source = open_source(Path(options.model))
    spec = read_spec(source)
    ground = lay_ground(selection, options, _model_facts(source, spec, options), ops_of(spec))
    options, ops, dtype, capabilities = ground.options, ground.ops, ground.dtype, ground.capabilities
    form = _form(ground, source)
    packed = packed_weights_of(options, source, ops, form)
    weights = _weight_memory(ground, source, spec, packed, form)
    if capabilities.memory_is_dedicated and weights.own_bytes > capabilities.available_bytes:
        raise lack_of_memory("the weights", weights.own_bytes, capabilities, SMALLER_MODEL)
    facts = replace(ground.facts, own_weight_bytes=weights.own_bytes)
    device, num_threads = torch.device(capabilities.device).type, options.num_threads or capabilities.num_threads
    step = StepMemory(spec, ops, getattr(torch, dtype), device, num_threads, options.max_num_seqs, weights.packed_types)
    kv_dtypes = ops.kv_layout.dtypes(dtype, options.block_size, spec.head_dim)
    config = resolve(options, facts, _after_loading(capabilities, weights), kv_dtypes, step.most_bytes)
    config = replace(config, adjustments=ground.adjustments + form.chosen + config.adjustments)
    return StartPlan(ground, source, spec, facts, packed, form, weights, kv_dtypes, step, config)


def scheduler_limits(config: EngineConfig) -> SchedulerLimits:
    options = config.options
    return SchedulerLimits(
        max_rows=options.max_num_seqs,
        max_batch_tokens=config.max_batched_tokens,
        max_chunk_tokens=config.max_chunk_tokens,
        max_background_tokens=config.max_background_tokens,
        max_model_len=config.max_model_len,
        max_waiting=options.max_waiting,
        prefix_caching=options.enable_prefix_caching,
        easy_blocks=config.easy_blocks,
    )


def ops_of(spec: ModelSpec) -> list[str]:
    """Those that a model of this kind calls."""
    sparse = [spec.is_sparse(layer) for layer in range(spec.num_layers)]
    unused = {*ENCODER_OPS, *(() if any(sparse) else SPARSE_OPS), *(DENSE_OPS if all(sparse) else ())}
    return [op for op in OP_NAMES if op not in unused]


def lay_ground(selection: Selection, options: EngineOptions, facts: ModelFacts, used: Sequence[str]) -> Ground:
    """`used`: the ops that the model calls."""
    platform, capabilities = selection.platform, selection.platform.capabilities()
    told = asked(platform, "with_model", platform.with_model, facts)
    facts, limited = _within_limits(facts, platform.name, told.limits)
    limits = decisions_of(told, wish_of(options), options, facts, capabilities)
    options, adjusted = settle_with_platform(options, limits)
    decisions = asked(platform, "negotiate", platform.negotiate, wish_of(options), facts)
    options, negotiated = settle_with_platform(options, decisions)
    dtype = activation_dtype(options, capabilities, Settlement(options.accept_adjustments))
    found = _ops(platform, options, capabilities, dtype, used)
    refuse_below(options.strict, found.ops, used, found.problems)
    promised = _promised(options, found, used)
    return Ground(
        selection,
        capabilities,
        options,
        facts,
        (*limited, *adjusted, *negotiated, *promised),
        dtype,
        within_graphs(found.ops, told.limits.value),
        found.problems,
        resident_bytes(),
        _known_errors(platform),
    )


def _promised(options: EngineOptions, found: Standing, used: Sequence[str]) -> list[Adjustment]:
    """What a deterministic engine says of itself. Raises ConfigError where its ops cannot keep the promise."""
    if not options.deterministic:
        return []
    refuse_by_batch(found.ops, used, found.problems)
    names = ", ".join(dict.fromkeys(found.ops.providers[op].name for op in used))
    reason = f"each row is summed in one order in any batch ({names})"
    cost = "these kernels do so always: it costs nothing" if found.ops.packing else "on kernels that are slower for it"
    return [Adjustment("deterministic", "true", f"{reason}, {cost}")]


def _known_errors(platform: Platform) -> KnownErrors:
    try:
        return KnownErrors(asked(platform, "running", platform.running).errors.value or ())
    except ValueError as error:
        raise ConfigError(
            f"the platform {platform.name!r} asks for what nobody does when an error comes: {error}; there are "
            f"{', '.join(Reaction)}"
        ) from None


def asked(platform: Platform, what: str, method: Callable[..., T], *arguments: Any) -> T:
    """A plugin that throws has said something, too."""
    try:
        return method(*arguments)
    except TriviumError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the platform {platform.name!r} failed when asked for {what}: {type(error).__name__}: {error}"
        ) from error


def _ops(
    platform: Platform, options: EngineOptions, capabilities: Capabilities, dtype: str, used: Sequence[str]
) -> Standing:
    """The platform's own, or the core's for its device type, as far as they are right."""
    num_threads = options.num_threads or capabilities.num_threads
    wish = wish_of(options)
    brought = asked(platform, "make_ops", platform.make_ops, wish, num_threads)
    is_own = brought is not None and options.kernels == "auto"
    ops = (
        brought
        if is_own
        else select_ops(
            options.kernels, capabilities.device, num_threads, dtype, options.instruction_set, options.deterministic
        )
    )
    if not isinstance(ops, Ops):
        raise ConfigError(f"the platform {platform.name!r} gave a {type(ops).__name__} as its ops")
    request = TrialRequest(
        platform=platform.name if is_own else None,
        wish=wish if is_own else Wish(kernels=options.kernels),
        device=capabilities.device,
        dtype=dtype,
        num_threads=num_threads,
        instruction_set=options.instruction_set,
        used=tuple(used),
    )
    return stand(request, ops, default_root(), capabilities.name)


def choose_platform(device: str) -> Selection:
    """With its variables, and ours, checked."""
    check_environment(os.environ, installed_plugins)
    selection = select_platform(device)
    platform = selection.platform
    if not is_in_tree(platform.name):
        known = [variable.name for variable in platform.static().env.value or ()]
        check_plugin_environment(os.environ, platform.name, known)
    return selection


def _model_facts(source: ModelSource, spec: ModelSpec, options: EngineOptions) -> ModelFacts:
    return ModelFacts(
        windows=spec.windows,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position=spec.max_position,
        checkpoint_dtype=spec.dtype,
        activations_per_token=spec.activations_per_token,
        vocab_size=spec.vocab_size,
        weight_bytes=_drawn_bytes(spec) if options.load_format == "dummy" else _stored_bytes(source),
    )


def _drawn_bytes(spec: ModelSpec) -> int:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return sum(math.prod(shape) for shape in weight_shapes(spec).values()) * dtype.itemsize


def _stored_bytes(source: ModelSource) -> int:
    tensors = source.tensors if isinstance(source, GGUFFile) else source.weights.tensors
    return sum(tensor.nbytes for tensor in tensors.values())


def _within_limits(
    facts: ModelFacts, platform: str, limits: Answer[PlatformLimits]
) -> tuple[ModelFacts, list[Adjustment]]:
    """The facts of a model that is no longer than the platform can run."""
    longest = limits.value.max_model_len if limits.value is not None else None
    if longest is None or longest >= facts.max_position:
        return facts, []
    if longest < 1:
        raise ConfigError(f"the platform {platform!r} says that it runs sequences of {longest} tokens at most")
    reason = f"{platform} runs no longer sequences ({limits.reason}); the model was made for {facts.max_position}"
    return replace(facts, max_position=longest), [Adjustment("max_model_len", str(longest), reason)]


def packed_weights_of(options: EngineOptions, source: ModelSource, ops: Ops, form: WeightForm) -> PackedWeights:
    if options.load_format == "dummy":
        return NoPackedWeights()
    return packed_weights(default_root() / FOLDER, options.packed_cache_bytes, source, ops.packing, form.name)


def _form(ground: Ground, source: ModelSource) -> WeightForm:
    wish, accepts_other = ground.options.weight_form, ground.options.accept_adjustments
    if ground.options.load_format == "dummy":
        return as_stored(wish, accepts_other, "load_format=dummy packs what it draws as it is")
    return choose_form(wish, locate_weights(source), ground.ops, accepts_other)


def _weight_memory(
    ground: Ground, source: ModelSource, spec: ModelSpec, packed: PackedWeights, form: WeightForm
) -> WeightMemory:
    dtype = getattr(torch, ground.dtype)
    if ground.options.load_format == "dummy":
        return random_weight_memory(spec, ground.ops, dtype)
    return weight_memory(locate_weights(source), ground.ops, dtype, ground.capabilities.device, packed.has, form)


def _after_loading(capabilities: Capabilities, weights: WeightMemory) -> Capabilities:
    """Where the engine has memory of its own, the cache takes what the weights leave."""
    if not capabilities.memory_is_dedicated:
        return capabilities
    return replace(capabilities, available_bytes=max(0, capabilities.available_bytes - weights.own_bytes))
