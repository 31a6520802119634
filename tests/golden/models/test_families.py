"""Every family, read from what `transformers` saves: the same logits and, over 64 new tokens, the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import SIZES, assert_equal, continued, loaded, prompts, random_weights, saved
from paged_run import generate
from safetensors.torch import save_file
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
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


TINY_VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def multimodal_gemma() -> PreTrainedModel:
    text = SIZES | {"head_dim": 16, "sliding_window": WINDOW, "num_hidden_layers": 7}
    config = Gemma3Config(text_config=Gemma3TextConfig(**text), vision_config=TINY_VISION, mm_tokens_per_image=4)
    return random_weights(Gemma3ForConditionalGeneration(config))


def test_the_text_part_of_a_multimodal_gemma_runs_alone(tmp_path: Path) -> None:
    model = multimodal_gemma()
    decoder = loaded(saved(model, tmp_path))
    (prompt,) = prompts((21,))
    assert_equal(generate(decoder, [prompt], NUM_NEW)[0], continued(model, prompt, NUM_NEW))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_both_layouts_of_multimodal_checkpoints_are_read(prefix: str, tmp_path: Path) -> None:
    model = multimodal_gemma()
    saved(model, tmp_path)
    as_laid = {name.replace("model.language_model.", prefix): weight for name, weight in model.state_dict().items()}
    del as_laid["lm_head.weight"]  # tied
    save_file({name: weight.contiguous() for name, weight in as_laid.items()}, tmp_path / "model.safetensors")
    (prompt,) = prompts((21,))
    assert_equal(generate(loaded(tmp_path), [prompt], 8)[0], continued(model, prompt, 8))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe some dense"])
def test_experts_that_are_stored_as_one_tensor_are_read(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    saved(model, tmp_path)
    fused = model.state_dict()
    assert any(key.endswith("mlp.experts.gate_up_proj") for key in fused)
    save_file({key: weight.contiguous() for key, weight in fused.items()}, tmp_path / "model.safetensors")
    (prompt,) = prompts((21,))
    assert_equal(generate(loaded(tmp_path), [prompt], 8)[0], continued(model, prompt, 8))


def test_a_checkpoint_in_shards_is_one_model(tmp_path: Path) -> None:
    model = MODELS["qwen3 tied"]()
    saved(model, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    (prompt,) = prompts((21,))
    assert_equal(generate(loaded(tmp_path), [prompt], 8)[0], continued(model, prompt, 8))


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("block_size", [4, 16])
def test_chunks_and_blocks_do_not_change_the_tokens(chunk: int, block_size: int, tmp_path: Path) -> None:
    model = MODELS["gemma3"]()
    decoder = loaded(saved(model, tmp_path))
    asked = prompts((1, 16, 75))
    for prompt, ours in zip(asked, generate(decoder, asked, 12, block_size, chunks=(chunk,)), strict=True):
        assert_equal(ours, continued(model, prompt, 12))


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral"])
def test_bfloat16_stays_close_to_transformers_in_bfloat16(name: str, tmp_path: Path) -> None:
    model = MODELS[name]().to(torch.bfloat16)
    decoder = loaded(saved(model, tmp_path), torch.bfloat16)
    (prompt,) = prompts((21,))
    ours, theirs = generate(decoder, [prompt], 1)[0].logits, continued(model, prompt, 1).logits.float()
    exact = continued(model.float(), prompt, 1).logits
    # Both round at other places; ours must not be further from the exact logits than theirs.
    assert (ours - exact).pow(2).mean() < 1.5 * (theirs - exact).pow(2).mean()
