"""What loading promises beside the right numbers: no copies, one clear sentence for what is wrong, progress."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf_file import write_gguf
from oracle import SIZES, loaded, prompts, random_weights, saved
from paged_run import generate
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from trivium.formats.source import open_source
from trivium.kernels.select import select_ops
from trivium.kernels.weights import QuantizedTensor
from trivium.models.load import load_model, random_model
from trivium.models.registry import read_spec
from trivium.types.errors import ModelFileError, UnsupportedModelError


def llama(**options: Any) -> LlamaForCausalLM:
    return random_weights(LlamaForCausalLM(LlamaConfig(**(SIZES | options))))


def is_mapped(weight: torch.Tensor, path: Path) -> bool:
    """Whether the tensor's memory is a mapping of the file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= weight.data_ptr() < end:
            return line.endswith(str(path))
    return False


def change_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))


def change_weights(path: Path, **changes: torch.Tensor | None) -> None:
    """None takes a tensor away; __ in a name stands for a dot."""
    weights = load_file(path / "model.safetensors")
    for name, weight in changes.items():
        if weight is None:
            del weights[name.replace("__", ".")]
        else:
            weights[name.replace("__", ".")] = weight
    save_file(weights, path / "model.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_float_weights_of_the_wanted_dtype_are_not_copied(tmp_path: Path) -> None:
    decoder = loaded(saved(llama(), tmp_path))
    assert isinstance(decoder.embedding, torch.Tensor)
    assert is_mapped(decoder.embedding, tmp_path / "model.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_quantized_weights_are_not_copied_whatever_the_dtype(tmp_path: Path) -> None:
    model = llama(hidden_size=64, intermediate_size=96)
    path = write_gguf(model, "llama", tmp_path / "model.gguf", lambda name: "Q4_1")
    decoder = loaded(path, torch.bfloat16)
    weight = decoder.layers[1].attention.o.weight
    assert isinstance(weight, QuantizedTensor)
    assert is_mapped(weight.data, path)


def test_weights_outlive_the_source_they_were_read_from(tmp_path: Path) -> None:
    source = open_source(saved(llama(), tmp_path))
    decoder = load_model(source, select_ops("reference"), torch.float32, "cpu")
    before = generate(decoder, prompts((5,)), 4)[0].tokens
    source.close()
    del source
    assert generate(decoder, prompts((5,)), 4)[0].tokens == before


def test_a_tied_output_is_the_embedding_itself(tmp_path: Path) -> None:
    decoder = loaded(saved(llama(tie_word_embeddings=True), tmp_path))
    assert decoder.lm_head is decoder.embedding


def test_a_copy_of_a_tied_embedding_is_not_an_unknown_tensor(tmp_path: Path) -> None:
    saved(llama(tie_word_embeddings=True), tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change_weights(tmp_path, lm_head__weight=embedding.clone())
    decoder = loaded(tmp_path)
    assert decoder.lm_head is decoder.embedding


def test_progress_ends_at_the_bytes_of_all_weights(tmp_path: Path) -> None:
    source = open_source(saved(llama(), tmp_path))
    seen: list[tuple[int, int]] = []
    load_model(source, select_ops("reference"), torch.float32, "cpu", lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(tensor.nbytes for tensor in source.weights.tensors.values())


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    change_weights(saved(llama(), tmp_path), model__layers__1__mlp__up_proj__weight=torch.zeros(7, 48))
    with pytest.raises(
        ModelFileError, match=r"'model.layers.1.mlp.up_proj.weight' has the shape \[7, 48\].*\[80, 48\]"
    ):
        loaded(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    change_weights(saved(llama(), tmp_path), model__layers__2__self_attn__k_proj__weight=None)
    with pytest.raises(ModelFileError, match=r"'model.layers.2.self_attn.k_proj.weight' is missing"):
        loaded(tmp_path)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    config = Qwen3MoeConfig(**SIZES, num_experts=3, num_experts_per_tok=1, moe_intermediate_size=16, head_dim=8)
    saved(random_weights(Qwen3MoeForCausalLM(config)), tmp_path)
    change_weights(tmp_path, model__layers__0__mlp__experts__2__up_proj__weight=None)
    with pytest.raises(ModelFileError, match=r"'model.layers.0.mlp.experts.2.up_proj.weight' is missing"):
        loaded(tmp_path)


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    change_weights(saved(llama(), tmp_path), model__layers__0__self_attn__q_proj__bias=torch.zeros(48))
    with pytest.raises(ModelFileError, match=r"1 of 31 tensors .* 'model.layers.0.self_attn.q_proj.bias'"):
        loaded(tmp_path)


def test_stored_rotary_frequencies_of_old_checkpoints_are_no_weights(tmp_path: Path) -> None:
    change_weights(saved(llama(), tmp_path), model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(6))
    loaded(tmp_path)


def test_weights_of_a_dtype_that_is_not_computed_with_are_refused(tmp_path: Path) -> None:
    change_weights(saved(llama(), tmp_path), model__norm__weight=torch.zeros(48, dtype=torch.float64))
    with pytest.raises(UnsupportedModelError, match=r"vector 'model.norm.weight' is of type F64"):
        loaded(tmp_path)


def test_a_quantized_vector_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for key, value in {
        "block_count": 1,
        "context_length": 8,
        "embedding_length": 32,
        "feed_forward_length": 32,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    row, square = np.zeros(34, np.uint8), np.zeros((32, 34), np.uint8)
    tensors = {"token_embd": square, "output_norm": row, "blk.0.attn_norm": row, "blk.0.ffn_norm": row}
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{part}"] = square
    for name, data in tensors.items():
        writer.add_tensor(f"{name}.weight", data, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"vector 'blk.0.attn_norm.weight' is of type Q8_0"):
        loaded(tmp_path / "model.gguf")


def test_an_unknown_architecture_is_refused_with_those_that_run(tmp_path: Path) -> None:
    change_config(saved(llama(), tmp_path), architectures=["BloomForCausalLM"])
    with pytest.raises(UnsupportedModelError, match=r"BloomForCausalLM; we run LlamaForCausalLM, MistralForCausalLM"):
        read_spec(open_source(tmp_path))


def test_an_unknown_gguf_architecture_is_refused_with_those_that_run(tmp_path: Path) -> None:
    model = llama(hidden_size=64, intermediate_size=96)
    path = write_gguf(model, "rwkv6", tmp_path / "model.gguf", lambda name: "F16")
    with pytest.raises(UnsupportedModelError, match=r"'rwkv6'; from GGUF files we run llama, qwen2"):
        read_spec(open_source(path))


def test_another_quantization_in_safetensors_is_refused(tmp_path: Path) -> None:
    change_config(saved(llama(), tmp_path), quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(UnsupportedModelError, match="quantized by awq"):
        read_spec(open_source(tmp_path))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": None}, "config.json does not say hidden_size"),
        ({"hidden_size": "48"}, "hidden_size in config.json is '48', not an integer"),
        ({"num_hidden_layers": 10**12}, "1000000000000 layers are not in 1"),
        ({"num_hidden_layers": 0}, "0 layers are not in 1"),
        ({"num_attention_heads": 0}, "num_attention_heads 0 is not in 1"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings 1000000000000 is not in 1"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key/value heads"),
        ({"head_dim": 7}, "7 rotary elements are not pairs"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters of config.json does not say factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0.0"),
        ({"rope_parameters": ["linear"]}, "not an object"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "theta is -1.0"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "1 rope factors for 6 frequencies",
        ),
    ],
)
def test_a_wrong_configuration_is_told_in_one_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    change_config(saved(llama(), tmp_path), **changes)
    with pytest.raises(ModelFileError, match=sentence):
        read_spec(open_source(tmp_path))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rope_parameters": {"rope_type": "mrope"}}, "rope scaling of type 'mrope'"),
        ({"hidden_act": "relu"}, "activation 'relu' is not among silu"),
        ({"dtype": "float8_e4m3fn"}, "'float8_e4m3fn' are not among float32"),
    ],
)
def test_what_we_do_not_compute_is_told_in_one_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    change_config(saved(llama(), tmp_path), **changes)
    with pytest.raises(UnsupportedModelError, match=sentence):
        read_spec(open_source(tmp_path))


def test_a_random_model_needs_only_the_configuration_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    spec = read_spec(open_source(tmp_path))
    ops, asked = select_ops("reference"), prompts((5, 9))

    def tokens(seed: int) -> list[list[int]]:
        decoder = random_model(spec, ops, torch.float32, "cpu", seed)
        return [row.tokens for row in generate(decoder, asked, 8)]

    assert tokens(1) == tokens(1) != tokens(2)


def test_facts_can_be_read_without_torch() -> None:
    code = "import sys, trivium.models.registry; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
