"""The engine on the example: its wishes are followed and said, a user's own are not overridden, and tokens are the CPU's."""

import json
from pathlib import Path
from typing import Any

import pytest
from trivium_platform_example import BLOCK_TOKENS

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.errors import ConfigError
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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def start(model: Path, device: str, **options: Any) -> EngineCore:
    """With seeded random weights."""
    values = {"load_format": "dummy", "seed": 1, "num_threads": 1, "max_num_seqs": 4} | options
    return EngineCore(EngineOptions(model=str(model), device=device, **values))


def tokens_of(core: EngineCore) -> list[int]:
    core.add(Request("r", tuple(range(40)), Sampling(seed=0, temperature=0.0), Stopping(max_tokens=8), arrival=0.0))
    tokens: list[int] = []
    while core.has_work:
        for delta in core.step():
            tokens += delta.tokens
    return tokens


def test_tokens_are_those_of_the_oracle(model: Path) -> None:
    assert tokens_of(start(model, "example")) == tokens_of(start(model, "cpu", block_size=BLOCK_TOKENS))


def test_what_the_chip_wants_is_chosen_and_said(model: Path) -> None:
    core = start(model, "example")
    assert core.config.kv.block_size == BLOCK_TOKENS
    said = {adjustment.option: adjustment.reason for adjustment in core.config.adjustments}
    assert "reads 32 tokens at once" in said["block_size"]


def test_a_users_own_block_size_is_never_changed_silently(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"block_size 64 cannot be kept, .*: give 32, or --accept-adjustments"):
        start(model, "example", block_size=64)
    assert start(model, "example", block_size=64, accept_adjustments=True).config.kv.block_size == BLOCK_TOKENS


def test_what_the_chip_does_not_compute_is_refused_with_the_remedy(model: Path) -> None:
    with pytest.raises(ConfigError, match="float16 is not computed by Example E1: --dtype bfloat16"):
        start(model, "example", dtype="float16")


def test_a_mistyped_variable_of_the_plugin_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_EXAMPLE_VISIBEL", "0")
    with pytest.raises(ConfigError, match="did you mean TRIVIUM_EXAMPLE_VISIBLE"):
        start(model, "example")
