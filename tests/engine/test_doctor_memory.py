"""What `doctor` says of memory is the most that the engine's process then takes, from its start on, as the system counts it:
within 5 % once the cache is full, the largest steps were made and every row drew at once. Nothing is counted by ourselves
here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trivium.config.options import EngineOptions
from trivium.engine.preview import PreviewRequest, preview
from trivium.kernels.native import native_state
from trivium.llm.llm import LLM
from trivium.llm.params import SamplingParams
from trivium.types.report import Report

pytestmark = pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")

MIB = 1 << 20
MOST_OFF = 0.05

# Much cache for little arithmetic: two layers whose heads are far wider than what they read.
WIDE_HEADS = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
HEAVY = {"hidden_size": 512, "intermediate_size": 8192, "num_hidden_layers": 8, "head_dim": 64}


@dataclass(frozen=True)
class Case:
    name: str
    sizes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


SAMPLE = Case("a cache", options={"kv_cache_bytes": 256 * MIB, "max_num_seqs": 16})
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "hidden_size": 512,
}
WINDOWS = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 512,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_local_base_freq": 10000.0,
}
DRAWN = {"load_format": "dummy"}
MANY_TOKENS = {"vocab_size": 128256}
LONG = {"max_position_embeddings": 1 << 15}
WIDE_STEPS = {"intermediate_size": 8192, "head_dim": 32}
FEW_ROWS = {"kv_cache_bytes": 64 * MIB, "max_num_seqs": 8}
MANY_ROWS = {"kv_cache_bytes": 64 * MIB, "max_num_seqs": 64}
BY_REFERENCE, IN_BFLOAT16 = {"kernels": "reference"}, {"dtype": "bfloat16"}
LARGE_VOCABULARY = Case("a large vocabulary", MANY_TOKENS, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 64})
WHOLE_LIST = [
    SAMPLE,
    Case("a cache in int8", options={"kv_cache_bytes": 128 * MIB, "max_num_seqs": 16, "kv_cache_dtype": "int8"}),
    Case("a cache in float32", options={"kv_cache_bytes": 256 * MIB, "max_num_seqs": 16, "kv_cache_dtype": "float32"}),
    Case("small blocks", options={"kv_cache_bytes": 128 * MIB, "max_num_seqs": 8, "block_size": 4}),
    Case("small steps", options={"kv_cache_bytes": 128 * MIB, "max_num_seqs": 16, "max_num_batched_tokens": 64}),
    Case("wide steps", WIDE_STEPS, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 16}),
    Case("heavy weights", HEAVY, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 4, "max_num_batched_tokens": 64}),
    Case(
        "heavy weights by the reference",
        HEAVY,
        {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 4, "max_num_batched_tokens": 64, "kernels": "reference"},
    ),
    Case("many long rows", options={"kv_cache_bytes": 128 * MIB, "max_num_seqs": 256}),
    Case("drawn weights", HEAVY, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 4, "max_num_batched_tokens": 64} | DRAWN),
    Case("drawn experts", EXPERTS, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 8} | DRAWN),
    Case(
        "tied embeddings", MANY_TOKENS | {"tie_word_embeddings": True}, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 8}
    ),
    Case(
        "a long context",
        {"max_position_embeddings": 1 << 17, "num_attention_heads": 1, "num_key_value_heads": 1},
        {"kv_cache_bytes": 256 * MIB, "max_num_seqs": 32},
    ),
    Case("many heads", {"num_attention_heads": 64, "head_dim": 64}, {"kv_cache_bytes": 64 * MIB, "max_num_seqs": 16}),
    Case(
        "packed weights kept on disk",
        HEAVY,
        {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 4, "max_num_batched_tokens": 64, "packed_cache_bytes": 1 << 30},
    ),
    Case("steps by the reference", options=FEW_ROWS | BY_REFERENCE),
    Case("steps in bfloat16", options=FEW_ROWS | IN_BFLOAT16),
    Case("wide steps by the reference", WIDE_STEPS, FEW_ROWS | BY_REFERENCE),
    Case("wide steps in bfloat16", WIDE_STEPS, FEW_ROWS | IN_BFLOAT16),
    Case("experts by the reference", EXPERTS, FEW_ROWS | BY_REFERENCE | DRAWN),
    Case("many heads by the reference", {"num_attention_heads": 64, "head_dim": 64}, FEW_ROWS | BY_REFERENCE),
    Case("windows", WINDOWS, FEW_ROWS | DRAWN),
    Case("small steps by the reference", options=FEW_ROWS | BY_REFERENCE | {"max_num_batched_tokens": 64}),
    Case("steps larger than the cache", options=FEW_ROWS | BY_REFERENCE | {"max_num_batched_tokens": 8192}),
    Case("a long context by the reference", LONG | {"num_key_value_heads": 2}, FEW_ROWS | BY_REFERENCE),
    LARGE_VOCABULARY,
    Case("wide steps and a large vocabulary by the reference", MANY_TOKENS | WIDE_STEPS, MANY_ROWS | BY_REFERENCE),
    Case("wide steps and a large vocabulary in bfloat16", MANY_TOKENS | WIDE_STEPS, MANY_ROWS | IN_BFLOAT16),
    Case("a large vocabulary, few rows", MANY_TOKENS, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 4}),
    Case("a large vocabulary, many rows", MANY_TOKENS, {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 256}),
    Case(
        "a large vocabulary by the reference",
        MANY_TOKENS,
        {"kv_cache_bytes": 32 * MIB, "max_num_seqs": 64, "max_num_batched_tokens": 256, "kernels": "reference"},
    ),
]


# Whose steps are small beside the rest, wide, and large.
MINI_ENCODER = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "torch_dtype": "float32",
}
WIDE_ENCODER = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 2}
ENCODERS = [
    Case("an encoder", {}, {}),
    Case("an encoder by the reference", {}, BY_REFERENCE),
    Case("an encoder in bfloat16", {}, IN_BFLOAT16),
    Case("a wide encoder", WIDE_ENCODER, {}),
    Case("a wide encoder by the reference", WIDE_ENCODER, BY_REFERENCE),
    Case("a wide encoder in bfloat16", WIDE_ENCODER, IN_BFLOAT16),
    Case("an encoder's large steps", {"num_hidden_layers": 2}, {"max_num_batched_tokens": 8192}),
    Case("an encoder of long texts", {"num_hidden_layers": 1, "max_position_embeddings": 4096}, {}),
]


def write_model(directory: Path, sizes: dict[str, Any]) -> None:
    config = WIDE_HEADS | sizes
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    if config["architectures"] == WIDE_HEADS["architectures"]:
        write_weights(directory / "model.safetensors", config)


def write_weights(path: Path, config: dict[str, Any]) -> None:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    for layer in range(config["num_hidden_layers"]):
        within = f"model.layers.{layer}"
        shapes |= {
            f"{within}.self_attn.q_proj.weight": (heads, hidden),
            f"{within}.self_attn.k_proj.weight": (kv_heads, hidden),
            f"{within}.self_attn.v_proj.weight": (kv_heads, hidden),
            f"{within}.self_attn.o_proj.weight": (hidden, heads),
            f"{within}.mlp.gate_proj.weight": (wide, hidden),
            f"{within}.mlp.up_proj.weight": (wide, hidden),
            f"{within}.mlp.down_proj.weight": (hidden, wide),
            f"{within}.input_layernorm.weight": (hidden,),
            f"{within}.post_attention_layernorm.weight": (hidden,),
        }
    torch.manual_seed(0)
    save_file(
        {name: (torch.randn(shape) * 0.02).to(torch.bfloat16) for name, shape in shapes.items()},
        path,
    )


def most_resident_bytes(pid: int) -> int:
    """Of all of the process's life."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def fill(llm: LLM, report: Report, num_tokens: int, num_rows: int) -> None:
    """Every block of the cache, in steps as large as they may be, with tokens from all over the vocabulary; a prompt as long
    as one may be; then all rows draw at once, some as only the reference can, and the positions of a prompt are scored."""
    assert report.model is not None and report.room is not None
    draw = random.Random(0)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [[draw.randrange(num_tokens) for _ in range(length)] for _ in range(count)]

    filtered = SamplingParams(max_tokens=4, seed=1, top_p=0.9, presence_penalty=0.5)
    length = min(report.model.max_model_len - 16, 1000)
    llm.generate(prompts(report.room.tokens // length + 1, length), filtered)
    llm.generate(prompts(1, report.model.max_model_len - filtered.max_tokens), filtered)
    scored = SamplingParams(max_tokens=4, seed=1, repetition_penalty=1.1, logprobs=5)
    rare = SamplingParams(max_tokens=4, seed=1, typical_p=0.5, presence_penalty=0.5)
    llm.generate(prompts(num_rows, 8), [filtered, scored, rare][:num_rows] + [scored] * (num_rows - 3))
    llm.generate(prompts(1, 64), SamplingParams(max_tokens=1, prompt_logprobs=5))


def fill_encoder(llm: LLM, report: Report, batched_tokens: int) -> None:
    """Steps as large as they may be, of texts of several lengths, and of single texts, some short."""
    assert report.model is not None
    draw, longest = random.Random(0), report.model.max_model_len

    def texts(count: int, length: int) -> list[list[int]]:
        return [[draw.randrange(1000) for _ in range(length)] for _ in range(count)]

    for length in (longest, longest // 2, 37):
        llm.embed(texts(2 * batched_tokens // length, length))
    for length in (1, 3, 11, 50):
        llm.embed(texts(1, length))


def check(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "model", case.sizes)
    num_tokens = (WIDE_HEADS | case.sizes)["vocab_size"]
    compare(
        case, tmp_path, monkeypatch, lambda llm, report: fill(llm, report, num_tokens, case.options["max_num_seqs"])
    )


def check_encoder(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MINI_ENCODER | case.sizes))
    batched_tokens = case.options.get("max_num_batched_tokens", 4096)
    drawn = Case(case.name, case.sizes, case.options | DRAWN)
    compare(drawn, tmp_path, monkeypatch, lambda llm, report: fill_encoder(llm, report, batched_tokens))


def compare(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[LLM, Report], None]) -> None:
    """The plan for the model in `tmp_path` with its process after `work`."""
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path / "home"))
    options = {"device": "cpu", "num_threads": 1, "skip_tokenizer_init": True, "packed_cache_bytes": 0} | case.options
    report = preview(PreviewRequest(EngineOptions(model=str(tmp_path / "model"), **options))).report
    assert report.refusal is None
    planned = sum(item.planned_bytes for item in report.memory)
    with LLM(str(tmp_path / "model"), **options) as llm:
        work(llm, report)
        assert llm.engine_pid is not None
        used = most_resident_bytes(llm.engine_pid)
    parts = ", ".join(f"{item.what} {item.planned_bytes // MIB}" for item in report.memory)
    told = f"{case}: {planned / MIB:.0f} MiB planned ({parts}), {used / MIB:.0f} used: {planned / used - 1:+.1%}"
    print(told)
    assert abs(planned - used) <= MOST_OFF * used, told


@pytest.mark.parametrize("case", [SAMPLE, LARGE_VOCABULARY], ids=str)
def test_memory_is_what_was_said(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE_LIST, ids=str)
def test_memory_is_what_was_said_of_many(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", ENCODERS, ids=str)
def test_an_encoders_memory_is_what_was_said(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_encoder(case, tmp_path, monkeypatch)
