"""Every family, read from what `transformers` saves: the same logits and, over 64 new tokens, the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oracle import SIZES, assert_equal, continued, loaded, prompts, random_weights, saved
from paged_run import generate
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

NUM_NEW = 64
WINDOW = 9  # tokens: shorter than some prompts, and no multiple of a block
MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def model_of(config_class: type, model_class: type, **options: Any) -> PreTrainedModel:
    return random_weights(model_class(config_class(**(SIZES | options))))


MODELS = {
    "llama": lambda: model_of(LlamaConfig, LlamaForCausalLM),
    "llama tied": lambda: model_of(LlamaConfig, LlamaForCausalLM, tie_word_embeddings=True),
    "llama biases": lambda: model_of(LlamaConfig, LlamaForCausalLM, attention_bias=True, mlp_bias=True),
    "llama wide heads": lambda: model_of(LlamaConfig, LlamaForCausalLM, head_dim=20, num_key_value_heads=1),
    "mistral": lambda: model_of(MistralConfig, MistralForCausalLM, sliding_window=None),
    "mistral window": lambda: model_of(MistralConfig, MistralForCausalLM, sliding_window=WINDOW),
    "qwen2": lambda: model_of(Qwen2Config, Qwen2ForCausalLM),
    "qwen2 upper window": lambda: model_of(
        Qwen2Config, Qwen2ForCausalLM, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen2 layer types": lambda: model_of(
        Qwen2Config,
        Qwen2ForCausalLM,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": lambda: model_of(Qwen3Config, Qwen3ForCausalLM, head_dim=16),
    "qwen3 tied": lambda: model_of(Qwen3Config, Qwen3ForCausalLM, head_dim=16, tie_word_embeddings=True),
    "gemma3": lambda: model_of(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=WINDOW,
        num_hidden_layers=7,
    ),
    "gemma3 linear": lambda: model_of(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        head_dim=16,
        sliding_window=WINDOW,
        final_logit_softcapping=5.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        tie_word_embeddings=False,
    ),
    "mixtral": lambda: model_of(MixtralConfig, MixtralForCausalLM, num_local_experts=5),
    "mixtral window": lambda: model_of(MixtralConfig, MixtralForCausalLM, num_local_experts=3, sliding_window=WINDOW),
    "qwen3_moe": lambda: model_of(Qwen3MoeConfig, Qwen3MoeForCausalLM, head_dim=16, **MOE),
    "qwen3_moe some dense": lambda: model_of(
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        **MOE,
        num_hidden_layers=4,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        norm_topk_prob=True,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    decoder = loaded(saved(model, tmp_path))
    asked = prompts((1, 5, 37))
    for prompt, ours in zip(asked, generate(decoder, asked, NUM_NEW), strict=True):
        assert_equal(ours, continued(model, prompt, NUM_NEW))
