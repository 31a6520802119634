"""Facts and weight names that families share when they are read from a Hugging Face directory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from trivium.models.spec import (
    Activation,
    AttentionSpec,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    ModelSpec,
    NormSpec,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    check_num_layers,
    check_size,
)
from trivium.models.weights import Place, Places
from trivium.types.errors import ModelFileError, UnsupportedModelError
from trivium.types.kv import BYTES_PER_ELEMENT

MAX_REAL = 1e30  # of any real number in a configuration; float32 ends at 3e38
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# What a multimodal configuration says for all its parts.
SHARED_WITH_TEXT = ("dtype", "torch_dtype", "tie_word_embeddings", "bos_token_id", "eos_token_id")

HF_PLACES: Places = {
    "embedding.weight": (Place("model.embed_tokens.weight"),),
    "final_norm.weight": (Place("model.norm.weight"),),
    "lm_head.weight": (Place("lm_head.weight"),),
    "layers.{i}.attention_norm.weight": (Place("model.layers.{i}.input_layernorm.weight"),),
    "layers.{i}.mlp_norm.weight": (Place("model.layers.{i}.post_attention_layernorm.weight"),),
    "layers.{i}.attention.q_norm.weight": (Place("model.layers.{i}.self_attn.q_norm.weight"),),
    "layers.{i}.attention.k_norm.weight": (Place("model.layers.{i}.self_attn.k_norm.weight"),),
    **{
        f"layers.{{i}}.attention.{part}.{kind}": (Place(f"model.layers.{{i}}.self_attn.{part}_proj.{kind}"),)
        for part in ("q", "k", "v", "o")
        for kind in ("weight", "bias")
    },
    **{
        f"layers.{{i}}.mlp.{part}.{kind}": (Place(f"model.layers.{{i}}.mlp.{part}_proj.{kind}"),)
        for part in ("gate", "up", "down")
        for kind in ("weight", "bias")
    },
    "layers.{i}.router.weight": (Place("model.layers.{i}.mlp.gate.weight"),),
    "layers.{i}.experts.gate.weight": (
        Place("model.layers.{i}.mlp.experts.{e}.gate_proj.weight"),
        Place("model.layers.{i}.mlp.experts.gate_up_proj", half=0),
    ),
    "layers.{i}.experts.up.weight": (
        Place("model.layers.{i}.mlp.experts.{e}.up_proj.weight"),
        Place("model.layers.{i}.mlp.experts.gate_up_proj", half=1),
    ),
    "layers.{i}.experts.down.weight": (
        Place("model.layers.{i}.mlp.experts.{e}.down_proj.weight"),
        Place("model.layers.{i}.mlp.experts.down_proj"),
    ),
}


@dataclass(frozen=True)
class HFConfig:
    """config.json, or a part of it, read with types; a null counts as absent, as it does in `transformers`."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json
    name: str = "config.json"

    def with_defaults(self, **defaults: Any) -> HFConfig:
        """What the family's own configuration class supplies where config.json is silent."""
        return replace(self, defaults=defaults)

    def part(self, key: str) -> HFConfig:
        """The object under `key`; empty where there is none."""
        nested = self.values.get(key) or {}
        if not isinstance(nested, dict):
            raise ModelFileError(f"{key} in {self.name} is {_shown(nested)}, not an object")
        return HFConfig(nested, generation=self.generation, name=f"{key} of {self.name}")

    def text(self) -> HFConfig:
        """The decoder's part of a multimodal configuration, or all of a plain one."""
        if not self.has("text_config"):
            return self
        nested = self.part("text_config")
        shared = {key: self.get(key) for key in SHARED_WITH_TEXT if self.has(key)}
        return replace(nested, values={**nested.values, **shared})

    def get(self, key: str) -> Any:
        value = self.values.get(key)
        return self.defaults.get(key) if value is None else value

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def integer(self, key: str) -> int:
        return self._integer(key, self._required(key))

    def size(self, key: str) -> int:
        return check_size(key, self.integer(key))

    def real(self, key: str) -> float:
        return self._real(key, self._required(key))

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def optional_size(self, key: str) -> int | None:
        return self.size(key) if self.has(key) else None

    def optional_real(self, key: str) -> float | None:
        return self.real(key) if self.has(key) else None

    def flag(self, key: str) -> bool:
        return bool(self.get(key))

    def sequence(self, key: str) -> list[Any]:
        value = self._required(key)
        if not isinstance(value, list):
            raise ModelFileError(f"{key} in {self.name} is {_shown(value)}, not a list")
        return value

    def reals(self, key: str) -> tuple[float, ...]:
        return tuple(self._real(key, value) for value in self.sequence(key))

    def integers(self, key: str) -> tuple[int, ...]:
        return tuple(self._integer(key, value) for value in self.sequence(key))

    def _required(self, key: str) -> Any:
        if not self.has(key):
            raise ModelFileError(f"{self.name} does not say {key}")
        return self.get(key)

    def _integer(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(f"{key} in {self.name} is {_shown(value)}, not an integer")
        return value

    def _real(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_REAL:
            raise ModelFileError(f"{key} in {self.name} is {_shown(value)}, not a number that fits")
        return float(value)


def _shown(value: Any) -> str:
    return repr(value)[:40]


def hf_spec(config: HFConfig, family: str, **facts: Any) -> ModelSpec:
    """A decoder of the common shape; `facts` are the fields of ModelSpec in which the family differs."""
    if config.has("quantization_config"):
        method = config.part("quantization_config").get("quant_method")
        raise UnsupportedModelError(f"the checkpoint is quantized by {method}, and only GGUF's quantizations are run")
    num_layers = hf_num_layers(config)
    common = ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=config.size("hidden_size"),
        num_heads=config.size("num_attention_heads"),
        num_kv_heads=config.optional_size("num_key_value_heads") or config.size("num_attention_heads"),
        head_dim=hf_head_dim(config),
        intermediate_size=config.size("intermediate_size"),
        vocab_size=config.size("vocab_size"),
        max_position=config.size("max_position_embeddings"),
        dtype=hf_dtype(config),
        activation=hf_activation(config),
        windows=(None,) * num_layers,
        attention=hf_attention(config),
        norm=NormSpec(eps=config.real("rms_norm_eps")),
        rope=hf_rope(config),
        tied_embeddings=config.flag("tie_word_embeddings"),
        bos_id=config.optional_integer("bos_token_id"),
        eos_ids=hf_eos_ids(config),
    )
    return msgspec.structs.replace(common, **facts)


def hf_num_layers(config: HFConfig) -> int:
    return check_num_layers(config.integer("num_hidden_layers"))


def hf_head_dim(config: HFConfig) -> int:
    head_dim = config.optional_size("head_dim")
    if head_dim is not None:
        return head_dim
    return check_size("head_dim", config.size("hidden_size") // config.size("num_attention_heads"))


def hf_attention(
    config: HFConfig, *, qkv_bias: bool | None = None, output_bias: bool | None = None, qk_norm: bool = False
) -> AttentionSpec:
    bias = config.flag("attention_bias")
    return AttentionSpec(
        scale=hf_head_dim(config) ** -0.5,
        qkv_bias=bias if qkv_bias is None else qkv_bias,
        output_bias=bias if output_bias is None else output_bias,
        qk_norm=qk_norm,
    )


def hf_dtype(config: HFConfig) -> str:
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if dtype not in BYTES_PER_ELEMENT:
        raise UnsupportedModelError(f"weights of dtype {_shown(dtype)} are not among {', '.join(BYTES_PER_ELEMENT)}")
    return dtype


def hf_activation(config: HFConfig) -> Activation:
    name = str(config.get("hidden_activation") or config.get("hidden_act"))
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"activation {_shown(name)} is not among {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def hf_eos_ids(config: HFConfig) -> tuple[int, ...]:
    """The generation configuration decides where it says anything, as in `transformers`."""
    generation = HFConfig(config.generation, name="generation_config.json")
    source = generation if generation.has("eos_token_id") else config
    if isinstance(source.get("eos_token_id"), list):
        return source.integers("eos_token_id")
    id = source.optional_integer("eos_token_id")
    return () if id is None else (id,)


def hf_layer_windows(config: HFConfig, window: int | None, is_sliding: list[bool]) -> tuple[int | None, ...]:
    """Per layer, from `layer_types` where config.json has it, else from `is_sliding`."""
    if config.has("layer_types"):
        is_sliding = [kind == "sliding_attention" for kind in config.sequence("layer_types")]
    return tuple(window if sliding else None for sliding in is_sliding)


def hf_rope(config: HFConfig) -> RopeSpec:
    """From `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
    parameters = config.part("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    return hf_rope_of(config, parameters, default_theta=config.optional_real("rope_theta") or 10_000.0)


def hf_rope_of(config: HFConfig, parameters: HFConfig, default_theta: float) -> RopeSpec:
    source = parameters if parameters.has("partial_rotary_factor") else config
    part = source.optional_real("partial_rotary_factor") or 1.0
    return RopeSpec(
        theta=parameters.optional_real("rope_theta") or default_theta,
        dim=int(hf_head_dim(config) * part),
        scaling=_hf_scaling(config, parameters),
    )


def _hf_scaling(config: HFConfig, parameters: HFConfig) -> RopeScaling | None:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    max_position = config.size("max_position_embeddings")
    original = (
        config.optional_size("original_max_position_embeddings")
        or parameters.optional_size("original_max_position_embeddings")
        or max_position
    )
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=parameters.real("factor"))
        case "dynamic":
            return DynamicScaling(factor=parameters.real("factor"), original_max_position=max_position)
        case "yarn":
            factor = parameters.optional_real("factor") or max_position / original
            return YarnScaling(
                factor=factor,
                original_max_position=original,
                attention_factor=_yarn_attention_factor(parameters, factor),
                beta_fast=parameters.optional_real("beta_fast") or 32.0,
                beta_slow=parameters.optional_real("beta_slow") or 1.0,
                truncate=parameters.get("truncate") is not False,
            )
        case "llama3":
            return Llama3Scaling(
                factor=parameters.real("factor"),
                original_max_position=original,
                low_freq_factor=parameters.real("low_freq_factor"),
                high_freq_factor=parameters.real("high_freq_factor"),
            )
        case "longrope" | "su":  # its name in the first checkpoints that had it
            return LongropeScaling(
                short_factors=parameters.reals("short_factor"),
                long_factors=parameters.reals("long_factor"),
                original_max_position=original,
                attention_factor=_longrope_attention_factor(parameters, max_position, original),
            )
    raise UnsupportedModelError(f"rope scaling of type {_shown(kind)} is not one we compute")


def _yarn_attention_factor(parameters: HFConfig, factor: float) -> float:
    def stretch(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.has("attention_factor"):
        return parameters.real("attention_factor")
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return stretch(parameters.real("mscale")) / stretch(parameters.real("mscale_all_dim"))
    return stretch(1.0)


def _longrope_attention_factor(parameters: HFConfig, max_position: int, original: int) -> float:
    if parameters.has("attention_factor"):
        return parameters.real("attention_factor")
    factor = parameters.optional_real("factor") or max_position / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
