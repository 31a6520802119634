"""A start on a GPU: what it launches is compiled beside it, and no step after it waits for a compiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trivium.config.options import EngineOptions
from trivium.engine.compile_ahead import LEAST_CORES
from trivium.engine.core import EngineCore
from trivium.engine.open_core import open_core
from trivium.execute.decode_graphs import captured_sizes
from trivium.platform.cpu import usable_threads
from trivium.types.request import Request, Sampling, Stopping

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.skipif(usable_threads()[0] < LEAST_CORES, reason="nobody compiles ahead on so few cores"),
]

MAX_ROWS = 80
PROMPTS = (1, 2, 3, 7, 16, 33, 100, 128, 257, 600, 1111, 3000)
DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
SPARSE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The kernels that this process compiles, by name."""
    from triton import knobs

    names: list[str] = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda src, cache_hit, **_: None if cache_hit else names.append(src.name)
        yield names


@pytest.mark.parametrize("config", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_neither_the_start_nor_a_step_after_it_compiles_what_others_could(
    config: dict[str, Any], compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = EngineOptions(
        model=str(tmp_path), load_format="dummy", skip_tokenizer_init=True, device="cuda", max_num_seqs=MAX_ROWS,
        kv_cache_bytes=256 << 20,
    )  # fmt: skip
    core = open_core(options)
    assert isinstance(core, EngineCore) and core.card.report.happened is not None
    told = core.card.report.happened.compiled_ahead
    assert "compiled or found ahead" in told and "failures" not in told, told
    assert compiled == []
    for length in PROMPTS:
        serve(core, [length])
    serve(core, PROMPTS)
    for size in captured_sizes(MAX_ROWS):
        serve(core, [3] * size)
    assert compiled == []


def serve(core: EngineCore, lengths: Any) -> None:
    for index, length in enumerate(lengths):
        prompt = tuple((7 * index + place) % 1000 for place in range(length))
        core.add(Request(str(index), prompt, Sampling(seed=0, temperature=0.0), Stopping(max_tokens=3), arrival=0.0))
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
