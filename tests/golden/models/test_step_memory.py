"""What a plan says of a step's values is what torch's allocator then counts, moment by moment, in models of every build."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from counted_memory import most_allocated

from trivium.formats.source import open_source
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.few_shapes import products_bytes
from trivium.kernels.native import native_state
from trivium.kernels.select import reference_ops, select_ops
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.kv_cache import KVCache
from trivium.models.load import random_model
from trivium.models.load_encoder import random_encoder
from trivium.models.registry import read_spec
from trivium.models.spec import ModelSpec
from trivium.models.step_memory import EncoderStepMemory, StepMemory

MIB = 1 << 20
BLOCK_SIZE = 16
# Of what is counted: small tensors that no formula names, and of each the allocator's rounding.
MOST_OFF, SLACK_BYTES = 0.03, 2 * MIB

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 1024,
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 512,
    "query_pre_attn_scalar": 128,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_local_base_freq": 10000.0,
}


@dataclass(frozen=True)
class Build:
    name: str
    sizes: dict[str, Any] = field(default_factory=dict)
    num_tokens: int = 1024
    context: int = 1024

    def __str__(self) -> str:
        return self.name


BUILDS = [
    Build("wide heads"),
    Build("wide feed-forward layers", {"intermediate_size": 4096, "head_dim": 32}),
    Build("a wide residual", {"hidden_size": 2048, "head_dim": 32}),
    Build("shared keys", {"num_key_value_heads": 2}, 512, 2048),
    Build("a long context", {"num_key_value_heads": 2}, 128, 16384),
    Build("experts", EXPERTS | {"hidden_size": 1024, "head_dim": 16}),
    Build("windows", GEMMA, 512, 2048),
]


def spec_of(build: Build, directory: Path) -> ModelSpec:
    (directory / "config.json").write_text(json.dumps(LLAMA | build.sizes))
    return read_spec(open_source(directory))


def one_long_row(build: Build, num_groups: int) -> list[AttentionBatch]:
    """Its last tokens are the step's."""
    num_blocks = build.context // BLOCK_SIZE
    slots = torch.arange(build.context - build.num_tokens, build.context)
    return [
        AttentionBatch(
            torch.tensor([0, build.num_tokens], dtype=torch.int32),
            torch.tensor([build.context], dtype=torch.int32),
            torch.arange(num_blocks, dtype=torch.int32)[None] + group * num_blocks,
            slots + group * build.context,
        )
        for group in range(num_groups)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_layers_hold_what_is_planned_for_them(build: Build, dtype: torch.dtype, tmp_path: Path) -> None:
    spec, ops, name = spec_of(build, tmp_path), reference_ops("the oracle"), str(dtype).removeprefix("torch.")
    model = random_model(spec, ops, dtype, "cpu", seed=0, max_position=build.context)
    kv_spec = spec.kv_spec(BLOCK_SIZE, name)
    kv = KVCache(kv_spec, build.context // BLOCK_SIZE * len(kv_spec.groups), ops.kv_layout, "cpu")
    attention = one_long_row(build, len(kv_spec.groups))
    positions = torch.arange(build.context - build.num_tokens, build.context)
    tokens = torch.zeros(build.num_tokens, dtype=torch.int64)

    with torch.inference_mode():
        counted = most_allocated(lambda: model.forward(tokens, positions, positions + 1, attention, kv))
    said = StepMemory(spec, ops, dtype, "cpu", num_threads=1, num_rows=1).layer_bytes(build.num_tokens, build.context)
    told = f"{said / MIB:.1f} MiB said, {counted / MIB:.1f} counted"
    print(told)
    assert abs(said - counted) <= MOST_OFF * counted + SLACK_BYTES, told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wide", [256, 2048])
def test_an_encoders_layers_hold_what_is_planned_for_them(wide: int, dtype: torch.dtype) -> None:
    num_tokens, length = 2048, 512
    spec = EncoderSpec(
        family="bert",
        num_layers=2,
        hidden_size=512,
        num_heads=8,
        intermediate_size=wide,
        vocab_size=100,
        num_positions=length,
        first_position=0,
        max_position=length,
        trained_length=length,
        num_token_types=2,
        norm_eps=1e-12,
        activation="gelu",
        dtype="float32",
        pooling="mean",
    )
    ops = reference_ops("the oracle")
    model = random_encoder(spec, ops, dtype, torch.device("cpu"), seed=0)
    zeros, starts = torch.zeros(num_tokens, dtype=torch.int64), torch.arange(0, num_tokens + 1, length).int()
    positions = torch.arange(num_tokens) % length

    with torch.inference_mode():
        counted = most_allocated(lambda: model.forward(zeros, positions, zeros, starts, ops))
    memory = EncoderStepMemory(spec, ops, dtype, "cpu", num_threads=1)
    said = memory.most_bytes(num_tokens, length) - products_bytes(4, dtype, "cpu", 1)
    told = f"{said / MIB:.1f} MiB said, {counted / MIB:.1f} counted"
    print(told)
    assert abs(said - counted) <= MOST_OFF * counted + SLACK_BYTES, told


@pytest.fixture
def memory(tmp_path: Path) -> StepMemory:
    return StepMemory(
        spec_of(Build("any"), tmp_path), reference_ops("the oracle"), torch.float32, "cpu", num_threads=1, num_rows=4
    )


def test_a_step_takes_more_where_contexts_are_longer_and_steps_are_larger(memory: StepMemory) -> None:
    assert memory.most_bytes(64, 16384) > memory.most_bytes(64, 1024)
    assert memory.most_bytes(2048, 1024) > memory.most_bytes(64, 1024)


def test_layers_and_logits_are_not_held_at_once_by_the_reference(memory: StepMemory, tmp_path: Path) -> None:
    many_tokens = StepMemory(
        spec_of(Build("", {"vocab_size": 1 << 17}), tmp_path), memory.ops, memory.dtype, "cpu", 1, 64
    )
    logits = 2 * 64 * (1 << 17) * 4
    assert logits < many_tokens.most_bytes(64, 1024)
    assert many_tokens.most_bytes(4096, 1024) < logits + many_tokens.layer_bytes(4096, 1024)


@pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")
def test_weights_that_are_expanded_for_many_tokens_are_counted_with_as_many(tmp_path: Path) -> None:
    """As program.cpp cuts steps: parts of all threads, and 512 tokens together for units of bytes."""
    ops = select_ops("native", num_threads=1)
    rows, units = (
        StepMemory(spec_of(Build("any"), tmp_path), ops, torch.float32, "cpu", 1, 4, frozenset({type})).most_bytes(
            2048, 1024
        )
        for type in ("BYTE_ROWS", "Q4_K_UNITS")
    )
    per_token = spec_of(Build("any"), tmp_path).activations_per_token * 4
    assert units - rows == (520 - 136) * per_token
