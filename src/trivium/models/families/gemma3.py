"""Gemma 3, its text decoder: sandwich norms, head norms, a scaled embedding, and five sliding layers to each full one."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.models.family import Family
from trivium.models.from_gguf import (
    GGUF_PLACES,
    gguf_attention,
    gguf_head_dim,
    gguf_num_heads,
    gguf_num_layers,
    gguf_rope,
    gguf_spec,
)
from trivium.models.from_huggingface import (
    HF_PLACES,
    HFConfig,
    hf_layer_windows,
    hf_num_layers,
    hf_rope_of,
    hf_spec,
)
from trivium.models.spec import AttentionSpec, ModelSpec, NormSpec, RopeSpec, check_size
from trivium.models.weights import Place

PLACES = {
    **HF_PLACES,
    "layers.{i}.attention_post_norm.weight": (Place("model.layers.{i}.post_attention_layernorm.weight"),),
    "layers.{i}.mlp_norm.weight": (Place("model.layers.{i}.pre_feedforward_layernorm.weight"),),
    "layers.{i}.mlp_post_norm.weight": (Place("model.layers.{i}.post_feedforward_layernorm.weight"),),
}

# Multimodal checkpoints leave out of their text_config what equals these.
DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
FULL_EVERY = 6  # layers
LOCAL_THETA = 10_000.0
LAYERS_OF_27B = 62


def from_hf(config: HFConfig) -> ModelSpec:
    config = config.text().with_defaults(**DEFAULTS)
    pattern = config.optional_integer("sliding_window_pattern") or FULL_EVERY
    is_sliding = sliding_layers(hf_num_layers(config), pattern)
    full_rope, sliding_rope = ropes(config)
    return hf_spec(
        config,
        "gemma3",
        windows=hf_layer_windows(config, config.optional_integer("sliding_window"), is_sliding),
        attention=AttentionSpec(
            scale=config.size("query_pre_attn_scalar") ** -0.5,
            qkv_bias=config.flag("attention_bias"),
            output_bias=config.flag("attention_bias"),
            qk_norm=True,
            softcap=config.optional_real("attn_logit_softcapping"),
        ),
        norm=NormSpec(eps=config.real("rms_norm_eps"), offset=1.0, sandwich=True),
        rope=full_rope,
        sliding_rope=sliding_rope,
        embedding_scale=config.size("hidden_size") ** 0.5,
        final_softcap=config.optional_real("final_logit_softcapping"),
    )


def ropes(config: HFConfig) -> tuple[RopeSpec, RopeSpec]:
    """Of full and of sliding layers; an old-style `rope_scaling` is of the full ones only."""
    nested = config.part("rope_parameters")
    full = nested.part("full_attention") if config.has("rope_parameters") else config.part("rope_scaling")
    return (
        hf_rope_of(config, full, default_theta=config.real("rope_theta")),
        hf_rope_of(config, nested.part("sliding_attention"), default_theta=config.real("rope_local_base_freq")),
    )


def sliding_layers(num_layers: int, full_every: int) -> list[bool]:
    return [(layer + 1) % max(full_every, 1) != 0 for layer in range(num_layers)]


def from_gguf(file: GGUFFile) -> ModelSpec:
    num_layers, hidden = gguf_num_layers(file), check_size("embedding_length", file.get_int("gemma3.embedding_length"))
    window = file.get_int("gemma3.attention.sliding_window")
    full_rope = gguf_rope(file)
    # The files do not say the scale of the scores; that of the 27B is not of its head size.
    scaled_by = gguf_head_dim(file)
    if num_layers == LAYERS_OF_27B:
        scaled_by = check_size("width per head", hidden // max(gguf_num_heads(file), 1))
    return gguf_spec(
        file,
        "gemma3",
        windows=tuple(window if sliding else None for sliding in gguf_sliding_layers(file, num_layers)),
        activation="gelu_tanh",
        attention=gguf_attention(file, scale=scaled_by**-0.5),
        norm=NormSpec(eps=file.get_float("gemma3.attention.layer_norm_rms_epsilon"), sandwich=True),
        rope=full_rope,
        sliding_rope=RopeSpec(theta=file.get_float("gemma3.rope.freq_base_swa", LOCAL_THETA), dim=full_rope.dim),
        embedding_scale=hidden**0.5,
        final_softcap=file.get_float("gemma3.final_logit_softcapping", None),
    )


def gguf_sliding_layers(file: GGUFFile, num_layers: int) -> list[bool]:
    """Files give a period, a flag per layer, or, most of them, nothing."""
    key = "gemma3.attention.sliding_window_pattern"
    if isinstance(file.metadata.get(key), list):
        return file.get_list(key, bool)
    return sliding_layers(num_layers, file.get_int(key, FULL_EVERY))


GEMMA3 = Family(
    name="gemma3",
    hf_architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    gguf_architectures=("gemma3",),
    hf_spec=from_hf,
    gguf_spec=from_gguf,
    hf_places=PLACES,
    gguf_places=GGUF_PLACES,
    # The two layouts of multimodal checkpoints.
    hf_prefixes=(
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
    ),
    hf_ignored=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
