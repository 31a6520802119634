"""Qwen3: llama with a norm over each head of queries and keys."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.models.families.qwen2 import qwen_windows
from trivium.models.family import Family
from trivium.models.from_gguf import GGUF_PLACES, gguf_spec
from trivium.models.from_huggingface import HF_PLACES, HFConfig, hf_attention, hf_spec
from trivium.models.spec import ModelSpec


def from_hf(config: HFConfig) -> ModelSpec:
    config = config.with_defaults(head_dim=128, sliding_window=4096, max_window_layers=28)
    attention = hf_attention(config, qk_norm=True)
    return hf_spec(config, "qwen3", windows=qwen_windows(config), attention=attention)


def from_gguf(file: GGUFFile) -> ModelSpec:
    return gguf_spec(file, "qwen3")


QWEN3 = Family(
    name="qwen3",
    hf_architectures=("Qwen3ForCausalLM",),
    gguf_architectures=("qwen3",),
    hf_spec=from_hf,
    gguf_spec=from_gguf,
    hf_places=HF_PLACES,
    gguf_places=GGUF_PLACES,
    # Qwen3-Embedding's checkpoints are of the decoder without its head, whose names have no beginning.
    hf_prefixes=tuple((name, f"model.{name}") for name in ("embed_tokens.", "layers.", "norm.")),
)
