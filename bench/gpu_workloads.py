"""What is measured on a GPU: shapes of public models with random weights, prompts of random tokens, and the times that
vLLM 0.26.0 took for them on one H200 (best of several runs, measured on 2026-11-15, prefix caching on and reset).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3
    | {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": _LLAMA
    | {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "qwen3-30b-a3b": _QWEN3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}

# Seconds, in the order of MODELS. "start" is from nothing to ready.
ANCHOR: dict[str, tuple[float, ...]] = {
    "start": (111.0, 87.6, 130.3),
    "decode-1": (0.47, 1.2471, 1.0698),
    "decode-8": (0.5616, 1.2975, 2.3915),
    "prefill-8k": (0.0364, 0.2082, 0.1573),
    "batch-256": (3.4037, 10.6154, 10.4474),
    "batch-1000": (5.0587, 17.8416, 14.1601),
    "shared-prefix": (1.0594, 1.9495, 2.274),
}


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: list[list[int]]
    new_tokens: int  # of each request, greedy, end tokens ignored


def workloads(vocab_size: int, seed: int = 0) -> Iterator[Workload]:
    """Seed 0 draws the prompts that the anchor had; another one draws others, of which nothing is cached."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(10, vocab_size - 10) for _ in range(count)]

    yield Workload("decode-1", [ids(128)], 256)
    yield Workload("decode-8", [ids(128) for _ in range(8)], 256)
    yield Workload("prefill-8k", [ids(8192)], 1)
    yield Workload("batch-256", [ids(1024) for _ in range(256)], 256)
    yield Workload("batch-1000", [ids(draw.randint(256, 768)) for _ in range(1000)], 128)
    prefix = ids(2048)
    yield Workload("shared-prefix", [prefix + ids(64) for _ in range(256)], 64)


def anchor_seconds(workload: str, model: str) -> float:
    return ANCHOR[workload][list(MODELS).index(model)]


def write_config(model: str, directory: Path) -> Path:
    """A directory that holds the model's config.json alone."""
    path = directory / model
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(MODELS[model], indent=1))
    return path
