"""Mistral: llama with a sliding window over all layers. Its GGUF files say they are llama, and are read as that."""

from __future__ import annotations

from trivium.models.families.llama import LLAMA
from trivium.models.family import Family
from trivium.models.from_huggingface import HF_PLACES, HFConfig, hf_attention, hf_num_layers, hf_spec
from trivium.models.spec import ModelSpec


def from_hf(config: HFConfig) -> ModelSpec:
    windows = (config.optional_integer("sliding_window"),) * hf_num_layers(config)
    attention = hf_attention(config, qkv_bias=False, output_bias=False)
    return hf_spec(config, "mistral", windows=windows, attention=attention)


MISTRAL = Family(
    name="mistral",
    hf_architectures=("MistralForCausalLM",),
    gguf_architectures=(),
    hf_spec=from_hf,
    gguf_spec=LLAMA.gguf_spec,
    hf_places=HF_PLACES,
    gguf_places=LLAMA.gguf_places,
)
