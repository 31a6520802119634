"""Qwen2 and 2.5: llama with biases on queries, keys and values, and maybe a window over its upper layers."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.models.family import Family
from trivium.models.from_gguf import GGUF_PLACES, gguf_spec
from trivium.models.from_huggingface import HF_PLACES, HFConfig, hf_attention, hf_layer_windows, hf_num_layers, hf_spec
from trivium.models.spec import ModelSpec


def qwen_windows(config: HFConfig) -> tuple[int | None, ...]:
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    first = config.integer("max_window_layers")
    return hf_layer_windows(config, window, [i >= first for i in range(hf_num_layers(config))])


def from_hf(config: HFConfig) -> ModelSpec:
    config = config.with_defaults(sliding_window=4096, max_window_layers=28)
    attention = hf_attention(config, qkv_bias=True, output_bias=False)
    return hf_spec(config, "qwen2", windows=qwen_windows(config), attention=attention)


def from_gguf(file: GGUFFile) -> ModelSpec:
    return gguf_spec(file, "qwen2")


QWEN2 = Family(
    name="qwen2",
    hf_architectures=("Qwen2ForCausalLM",),
    gguf_architectures=("qwen2",),
    hf_spec=from_hf,
    gguf_spec=from_gguf,
    hf_places=HF_PLACES,
    gguf_places=GGUF_PLACES,
)
