"""GGUF files of each architecture and type, against `transformers` with the same weights, dequantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_file import write_gguf
from oracle import SIZES, assert_equal, continued, loaded, prompts, random_weights
from paged_run import generate
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from trivium.formats.quant_types import QUANT_TYPES
from trivium.formats.source import open_source
from trivium.kernels.weights import QuantizedTensor
from trivium.models.layers import SparseMLP
from trivium.models.registry import read_spec

NUM_NEW = 64
# Rows of a whole number of blocks of 32, and of 256 for the types that need it.
SMALL = SIZES | {"hidden_size": 64, "intermediate_size": 96}
WIDE = SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

ARCHITECTURES: dict[str, tuple[str, type, type, dict[str, Any]]] = {
    "llama": ("llama", LlamaForCausalLM, LlamaConfig, {"attention_bias": True}),
    "llama 3 rope factors": ("llama", LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama tied": ("llama", LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2 yarn": ("qwen2", Qwen2ForCausalLM, Qwen2Config, {"rope_parameters": YARN}),
    "qwen3": ("qwen3", Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
    "gemma3": (
        "gemma3",
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 9,
            "num_hidden_layers": 7,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "mixtral": ("llama", MixtralForCausalLM, MixtralConfig, {"num_local_experts": 4}),
    "qwen3_moe": (
        "qwen3moe",
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        {
            "head_dim": 32,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
}


def mixed_types(name: str) -> str:
    """As in real files: different tensors of different types, the router in full."""
    if "ffn_gate_inp" in name:
        return "F32"
    return {"attn_q": "Q4_0", "attn_v": "Q8_0", "ffn_down": "Q5_1", "token_embd": "Q8_0"}.get(
        name.split(".")[-2], "Q4_1"
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_of_each_architecture_gives_the_tokens_of_its_dequantized_weights(
    name: str, tmp_path: Path
) -> None:
    architecture, model_class, config_class, options = ARCHITECTURES[name]
    model = random_weights(model_class(config_class(**(SMALL | options))))
    path = write_gguf(model, architecture, tmp_path / "model.gguf", mixed_types)
    asked = prompts((1, 5, 37))
    for prompt, ours in zip(asked, generate(loaded(path), asked, NUM_NEW), strict=True):
        assert_equal(ours, continued(model, prompt, NUM_NEW))


@pytest.mark.parametrize("type", QUANT_TYPES)
def test_each_type_of_tensor_runs_as_it_is_stored(type: str, tmp_path: Path) -> None:
    model = random_weights(LlamaForCausalLM(LlamaConfig(**WIDE)))
    path = write_gguf(model, "llama", tmp_path / "model.gguf", lambda name: type)
    decoder = loaded(path)
    if QUANT_TYPES[type].block_elements > 1:
        attention = decoder.layers[0].attention
        for weight in (decoder.embedding, decoder.lm_head, attention.qkv.weights[0], attention.o.weight):
            assert isinstance(weight, QuantizedTensor)
            assert weight.type == type
    (prompt,) = prompts((23,))
    assert_equal(generate(decoder, [prompt], 16)[0], continued(model, prompt, 16))


def test_merged_experts_stay_quantized(tmp_path: Path) -> None:
    model = random_weights(MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=3)))
    decoder = loaded(write_gguf(model, "llama", tmp_path / "model.gguf", lambda name: "Q4_1"))
    mlp = decoder.layers[0].mlp
    assert isinstance(mlp, SparseMLP)
    assert isinstance(mlp.experts.gate, QuantizedTensor)
    assert mlp.experts.gate.shape == (3, 96, 64)


def test_end_of_text_and_end_of_turn_both_end_a_sequence(tmp_path: Path) -> None:
    model = random_weights(LlamaForCausalLM(LlamaConfig(**SMALL)))
    spec = read_spec(open_source(write_gguf(model, "llama", tmp_path / "model.gguf", lambda name: "F16")))
    assert (spec.bos_id, spec.eos_ids) == (1, (2, 3))
    assert (spec.dtype, spec.quantization) == ("float16", None)


def test_a_file_of_float_weights_is_run_in_the_dtype_asked_for(tmp_path: Path) -> None:
    model = random_weights(LlamaForCausalLM(LlamaConfig(**SMALL)))
    decoder = loaded(write_gguf(model, "llama", tmp_path / "model.gguf", lambda name: "BF16"), torch.float32)
    assert isinstance(decoder.embedding, torch.Tensor)
    assert decoder.embedding.dtype == torch.float32
