"""A small engine on the liar, and its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.request import Request, Sampling, Stopping

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def options(model: Path, device: str = "liar", **values: Any) -> EngineOptions:
    given = {"load_format": "dummy", "seed": 1, "num_threads": 1, "max_num_seqs": 4, "dtype": "float32"} | values
    return EngineOptions(model=str(model), device=device, **given)


def submit(core: EngineCore, name: str, prompt: range) -> None:
    core.add(Request(name, tuple(prompt), Sampling(seed=0, temperature=0.0), Stopping(max_tokens=6), arrival=0.0))


def finish(core: EngineCore) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens, and errors, by request."""
    tokens: dict[str, list[int]] = {}
    errors: dict[str, str] = {}
    while core.has_work:
        for delta in core.step():
            tokens.setdefault(delta.request_id, []).extend(delta.tokens)
            if delta.error is not None:
                errors[delta.request_id] = delta.error
    core.assert_balanced()
    return tokens, errors
