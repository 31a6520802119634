"""Llama 2 and 3, SmolLM2, and all that follow them: the plain decoder."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.models.family import Family
from trivium.models.from_gguf import GGUF_PLACES, gguf_spec
from trivium.models.from_huggingface import HF_PLACES, HFConfig, hf_spec
from trivium.models.spec import ModelSpec
from trivium.models.weights import Place

# llama.cpp turns neighbouring elements of a head of this architecture, so its converter interleaves the halves.
LLAMA_GGUF_PLACES = {
    **GGUF_PLACES,
    **{
        f"layers.{{i}}.attention.{part}.{kind}": (Place(f"blk.{{i}}.attn_{part}.{kind}", interleaved_heads=True),)
        for part in ("q", "k")
        for kind in ("weight", "bias")
    },
}


def from_hf(config: HFConfig) -> ModelSpec:
    return hf_spec(config, "llama", mlp_bias=config.flag("mlp_bias"))


def from_gguf(file: GGUFFile) -> ModelSpec:
    return gguf_spec(file, "llama")


LLAMA = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM",),
    gguf_architectures=("llama",),
    hf_spec=from_hf,
    gguf_spec=from_gguf,
    hf_places=HF_PLACES,
    gguf_places=LLAMA_GGUF_PLACES,
)
