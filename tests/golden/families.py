"""One tiny model for each family, with seeded random weights, made and saved by `transformers`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Wide enough that the likeliest token leads by far more than rounding.
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class TinyFamily:
    name: str
    config: str  # class names in transformers
    model: str
    extra: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path, seed: int = 0) -> PreTrainedModel:
        """The oracle; its weights are in `directory`."""
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**{**SIZES, **self.extra})
        config._attn_implementation = "eager"
        model = getattr(transformers, self.model)(config).float().eval()
        model.save_pretrained(directory)
        return model


MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}
FAMILIES = [
    TinyFamily("llama", "LlamaConfig", "LlamaForCausalLM"),
    TinyFamily("llama-tied", "LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    TinyFamily(
        "llama-3-scaled",
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    TinyFamily("mistral", "MistralConfig", "MistralForCausalLM", {"sliding_window": 48}),
    TinyFamily("qwen2", "Qwen2Config", "Qwen2ForCausalLM"),
    TinyFamily("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 24}),
    TinyFamily(
        "gemma3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16},
    ),
    TinyFamily("mixtral", "MixtralConfig", "MixtralForCausalLM", {**MOE, "sliding_window": None}),
    TinyFamily(
        "qwen3-moe",
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "head_dim": 16,
        },
    ),
]


def greedy_tokens(model: PreTrainedModel, prompt: list[int], new: int) -> list[int]:
    """What `transformers` generates, one sequence at a time, end tokens ignored."""
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new
        )
    return out[0, len(prompt) :].tolist()
