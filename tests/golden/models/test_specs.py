"""The facts of a model from the forms in which checkpoints have given them over the years."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter, RopeScalingType
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3Config, Qwen2Config

from trivium.formats.source import open_source
from trivium.models.registry import read_spec
from trivium.models.rope import Rope
from trivium.models.spec import LinearScaling, LongropeScaling, ModelSpec, RopeSpec
from trivium.types.errors import ModelFileError, TriviumError, UnsupportedModelError
from trivium.types.kv import KVGroup

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def spec_of(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelSpec:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_spec(open_source(directory))


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (None, None, ()),
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, {"eos_token_id": [7, 9]}, (7, 9)),
        ([2, 5], {"eos_token_id": 7}, (7,)),
        (2, {"temperature": 0.6}, (2,)),
    ],
)
def test_end_tokens_are_those_of_the_generation_configuration_if_it_has_any(
    in_config: Any, in_generation: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert spec_of(tmp_path, LLAMA | {"eos_token_id": in_config}, in_generation).eos_ids == expected


def test_what_an_old_llama_configuration_leaves_out_has_the_value_it_always_had(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, LLAMA | {"torch_dtype": "float16"})
    assert (spec.num_kv_heads, spec.head_dim, spec.dtype) == (4, 16, "float16")
    assert spec.rope == RopeSpec(theta=10_000.0, dim=16)
    assert not spec.tied_embeddings


@pytest.mark.parametrize("use_window", [True, False])
def test_windows_of_a_qwen2_without_layer_types_begin_where_it_says(use_window: bool, tmp_path: Path) -> None:
    options = {"num_hidden_layers": 5, "use_sliding_window": use_window, "sliding_window": 33, "max_window_layers": 3}
    theirs = Qwen2Config(**options)
    spec = spec_of(tmp_path, LLAMA | {"architectures": ["Qwen2ForCausalLM"]} | options)
    assert spec.windows == tuple(33 if kind == "sliding_attention" else None for kind in theirs.layer_types)


def test_a_multimodal_gemma_leaves_most_of_its_text_configuration_to_defaults(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "torch_dtype": "bfloat16"}
    spec, theirs = spec_of(tmp_path, config | {"eos_token_id": [1, 106]}), Gemma3Config(text_config=text).text_config
    assert (spec.num_heads, spec.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (spec.head_dim, spec.vocab_size) == (theirs.head_dim, theirs.vocab_size)
    assert spec.max_position == theirs.max_position_embeddings
    assert spec.windows == tuple(1024 if kind == "sliding_attention" else None for kind in theirs.layer_types)
    assert spec.rope == RopeSpec(theta=1e6, dim=256, scaling=LinearScaling(8.0))
    assert spec.sliding_rope == RopeSpec(theta=1e4, dim=256)
    assert spec.tied_embeddings
    assert (spec.dtype, spec.eos_ids) == ("bfloat16", (1, 106))


def test_layers_of_gemma_make_groups_of_equal_size(tmp_path: Path) -> None:
    config = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "sliding_window": 8}
    kv = spec_of(tmp_path, config | {"hidden_activation": "gelu_pytorch_tanh"}).kv_spec(16, "bfloat16")
    assert kv.groups == (*(KVGroup((i,), 8) for i in (0, 1, 2, 3, 4, 6)), KVGroup((5,), None))
    assert (kv.dtype, kv.head_dim) == ("bfloat16", 256)


def gguf_spec_of(path: Path, architecture: str, numbers: dict[str, Any], **tensors: np.ndarray) -> ModelSpec:
    """A file with metadata and an embedding, which is all that facts are read from."""
    writer = GGUFWriter(path / "model.gguf", architecture)
    sizes = {"block_count": 2, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96}
    for key, value in (sizes | {"attention.head_count": 4} | numbers).items():
        key = f"{architecture}.{key}"
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    if "attention.layer_norm_rms_epsilon" not in numbers:
        writer.add_layer_norm_rms_eps(1e-5)
    for name, data in ({"token_embd.weight": np.zeros((10, 64), np.float32)} | tensors).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_spec(open_source(path / "model.gguf"))


def test_numbers_that_are_given_per_layer_must_agree(tmp_path: Path) -> None:
    spec = gguf_spec_of(tmp_path, "llama", {"attention.head_count_kv": [2, 2]})
    assert spec.num_kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="head_count_kv differs between layers"):
        gguf_spec_of(tmp_path, "llama", {"attention.head_count_kv": [2, 4]})


@pytest.mark.parametrize(
    ("pattern", "sliding"),
    [
        ({}, [True] * 5 + [False, True, True]),
        ({"attention.sliding_window_pattern": 3}, [True, True, False] * 2 + [True, True]),
        ({"attention.sliding_window_pattern": [True, False] * 4}, [True, False] * 4),
    ],
)
def test_sliding_layers_of_a_gemma_gguf(pattern: dict[str, Any], sliding: list[bool], tmp_path: Path) -> None:
    numbers = {"block_count": 8, "attention.sliding_window": 8, "attention.key_length": 16}
    spec = gguf_spec_of(tmp_path, "gemma3", numbers | {"attention.value_length": 16} | pattern)
    assert spec.windows == tuple(8 if one else None for one in sliding)


def test_the_27b_gemma_scales_its_scores_by_its_width_per_head(tmp_path: Path) -> None:
    numbers = {"attention.sliding_window": 8, "attention.key_length": 8, "attention.value_length": 8}
    assert gguf_spec_of(tmp_path, "gemma3", numbers).attention.scale == 8**-0.5
    assert gguf_spec_of(tmp_path, "gemma3", numbers | {"block_count": 62}).attention.scale == 16**-0.5


def test_long_and_short_factors_of_a_gguf_are_its_rope_scaling(tmp_path: Path) -> None:
    short, long = np.linspace(1, 2, 8, dtype=np.float32), np.linspace(3, 9, 8, dtype=np.float32)
    factors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    numbers = {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.25}
    spec = gguf_spec_of(tmp_path, "llama", numbers, **factors)
    assert spec.rope.scaling == LongropeScaling(tuple(short.tolist()), tuple(long.tolist()), 32, 1.25)


def test_rope_factors_of_the_wrong_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'rope_freqs.weight' is F32 of shape \[5\], not F32 of \[8\]"):
        gguf_spec_of(tmp_path, "llama", {}, **{"rope_freqs.weight": np.ones(5, np.float32)})


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"block_count": 4_000_000_000}, "4000000000 layers are not in 1"),
        ({"attention.head_count": 0}, "num_heads 0 is not in 1"),
        ({"rope.dimension_count": 40}, "40 rotary elements do not fit in heads of 16"),
        ({"context_length": "long"}, "'llama.context_length' must be an integer"),
        ({"expert_count": 4, "expert_used_count": 5}, "5 of 4 experts cannot be chosen"),
    ],
)
def test_wrong_metadata_is_told_in_one_sentence(numbers: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=sentence):
        gguf_spec_of(tmp_path, "llama", numbers)


def test_a_rope_scaling_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="'blend' is not one we compute"):
        gguf_spec_of(tmp_path, "llama", {"rope.scaling.type": "blend"})
    assert gguf_spec_of(tmp_path, "llama", {"rope.scaling.type": RopeScalingType.NONE.value}).rope.scaling is None


CONFIGS: list[dict[str, Any]] = [
    LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    LLAMA | {"rope_scaling": {"type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    LLAMA | {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}},
    LLAMA | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": 1},
    LLAMA | {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
    LLAMA | {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 64}},
    LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    LLAMA
    | {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32, "mlp_only_layers": [0], "decoder_sparse_step": 1},
]
KEYS = sorted({key for config in CONFIGS for key in config} | {"head_dim", "eos_token_id", "query_pre_attn_scalar"})
NUMBERS = st.integers(-3, 70) | st.integers() | st.floats() | st.just(10**400)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=3) | st.lists(NUMBERS, max_size=9)
ROPE_KEYS = ["rope_type", "factor", "rope_theta", "short_factor", "beta_fast", "low_freq_factor", "mscale"]
ROPE_VALUES = VALUES | st.sampled_from(["linear", "dynamic", "yarn", "llama3", "longrope"])


@settings(max_examples=400)
@given(
    st.sampled_from(CONFIGS),
    st.dictionaries(
        st.sampled_from(KEYS), VALUES | st.dictionaries(st.sampled_from(ROPE_KEYS), ROPE_VALUES), max_size=3
    ),
)
def test_a_damaged_configuration_gives_a_sentence_or_a_spec_and_never_a_traceback(
    tmp_path: Path, config: dict[str, Any], damage: dict[str, Any]
) -> None:
    with contextlib.suppress(TriviumError):
        spec = spec_of(tmp_path, config | damage)
        for layer in range(spec.num_layers):
            Rope(spec.rope_of_layer(layer), max_position=4, device="cpu")


GGUF_KEYS = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "expert_count",
    "expert_used_count",
]
GGUF_VALUES = (
    st.integers(0, 70)
    | st.integers(0, 2**32 - 1)
    | st.floats(width=32)
    | st.sampled_from(["linear", "yarn", "longrope", "none", ""])
    | st.lists(st.integers(0, 5), min_size=1, max_size=3)
)


@settings(max_examples=200)
@given(
    st.sampled_from(["llama", "qwen3", "gemma3", "qwen3moe"]),
    st.dictionaries(st.sampled_from(GGUF_KEYS), GGUF_VALUES, max_size=3),
)
def test_damaged_metadata_give_a_sentence_or_a_spec_and_never_a_traceback(
    tmp_path: Path, architecture: str, damage: dict[str, Any]
) -> None:
    with contextlib.suppress(TriviumError):
        spec = gguf_spec_of(tmp_path, architecture, {"attention.sliding_window": 8} | damage)
        for layer in range(spec.num_layers):
            Rope(spec.rope_of_layer(layer), max_position=4, device="cpu")
