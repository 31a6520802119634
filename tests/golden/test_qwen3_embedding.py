"""Checkpoints of Qwen3-Embedding: a decoder without its head, whose last state is the vector."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from families import SIZES
from transformers import Qwen3Config, Qwen3Model

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.request import Request, Sampling, Stopping


def test_the_vector_is_the_last_state_that_transformers_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Qwen3Model(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)).float().eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForCausalLM"]}))
    core = EngineCore(
        EngineOptions(
            model=str(tmp_path), dtype="float32", kv_cache_dtype="float32", kv_cache_bytes=1 << 20, num_threads=1
        )
    )
    draw = random.Random(2)
    for length in (1, 7, 90):
        text = tuple(draw.randrange(3, 512) for _ in range(length))
        core.add(Request("text", text, Sampling(seed=0, pools=True), Stopping(max_tokens=1), arrival=0.0))
        deltas = []
        while core.has_work:
            deltas += core.step()
        (pooled,) = [delta.pooled for delta in deltas if delta.pooled]
        with torch.inference_mode():
            want = model(torch.tensor([text])).last_hidden_state[0, -1]
        assert torch.allclose(torch.frombuffer(bytearray(pooled), dtype=torch.float32), want, atol=1e-4)
