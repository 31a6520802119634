"""Mixtral: llama with experts in every layer. Its GGUF files say they are llama, and have experts."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.models.families.llama import LLAMA_GGUF_PLACES
from trivium.models.family import Family
from trivium.models.from_gguf import gguf_spec
from trivium.models.from_huggingface import HF_PLACES, HFConfig, hf_attention, hf_num_layers, hf_spec
from trivium.models.spec import ModelSpec, MoeSpec
from trivium.models.weights import Place

PLACES = {
    **HF_PLACES,
    "layers.{i}.router.weight": (
        Place("model.layers.{i}.block_sparse_moe.gate.weight"),
        *HF_PLACES["layers.{i}.router.weight"],
    ),
    **{
        f"layers.{{i}}.experts.{part}.weight": (
            Place(f"model.layers.{{i}}.block_sparse_moe.experts.{{e}}.{theirs}.weight"),
            *HF_PLACES[f"layers.{{i}}.experts.{part}.weight"],
        )
        for part, theirs in {"gate": "w1", "down": "w2", "up": "w3"}.items()
    },
}


def from_hf(config: HFConfig) -> ModelSpec:
    config = config.with_defaults(rope_theta=1_000_000.0)
    num_layers = hf_num_layers(config)
    return hf_spec(
        config,
        "mixtral",
        windows=(config.optional_integer("sliding_window"),) * num_layers,
        attention=hf_attention(config, qkv_bias=False, output_bias=False),
        moe=MoeSpec(
            num_experts=config.integer("num_local_experts"),
            top_k=config.integer("num_experts_per_tok"),
            intermediate_size=config.integer("intermediate_size"),
            norm_topk_prob=True,
            sparse_layers=tuple(range(num_layers)),
        ),
    )


def from_gguf(file: GGUFFile) -> ModelSpec:
    return gguf_spec(file, "mixtral")


MIXTRAL = Family(
    name="mixtral",
    hf_architectures=("MixtralForCausalLM",),
    gguf_architectures=("llama",),
    hf_spec=from_hf,
    gguf_spec=from_gguf,
    hf_places=PLACES,
    gguf_places=LLAMA_GGUF_PLACES,
    sparse=True,
)
