"""Qwen3 mixture of experts: Qwen3's attention, with experts in the layers that are not named dense."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.models.family import Family
from trivium.models.from_gguf import GGUF_PLACES, gguf_spec
from trivium.models.from_huggingface import HF_PLACES, HFConfig, hf_attention, hf_num_layers, hf_spec
from trivium.models.spec import ModelSpec, MoeSpec


def from_hf(config: HFConfig) -> ModelSpec:
    config = config.with_defaults(sliding_window=4096, mlp_only_layers=[], decoder_sparse_step=1)
    num_layers = hf_num_layers(config)
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    return hf_spec(
        config,
        "qwen3_moe",
        windows=(window,) * num_layers,
        attention=hf_attention(config, qk_norm=True),
        moe=MoeSpec(
            num_experts=config.integer("num_local_experts" if config.has("num_local_experts") else "num_experts"),
            top_k=config.integer("num_experts_per_tok"),
            intermediate_size=config.integer("moe_intermediate_size"),
            norm_topk_prob=config.flag("norm_topk_prob"),
            sparse_layers=sparse_layers(config, num_layers),
        ),
    )


def sparse_layers(config: HFConfig, num_layers: int) -> tuple[int, ...]:
    """Every `decoder_sparse_step`-th layer, without those that are listed as dense."""
    step, dense = max(config.integer("decoder_sparse_step"), 1), config.integers("mlp_only_layers")
    return tuple(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense)


def from_gguf(file: GGUFFile) -> ModelSpec:
    return gguf_spec(file, "qwen3_moe")


QWEN3_MOE = Family(
    name="qwen3_moe",
    hf_architectures=("Qwen3MoeForCausalLM",),
    gguf_architectures=("qwen3moe",),
    hf_spec=from_hf,
    gguf_spec=from_gguf,
    hf_places=HF_PLACES,
    gguf_places=GGUF_PLACES,
    sparse=True,
)
