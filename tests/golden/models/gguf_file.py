"""Writes a `transformers` model as a GGUF file, with the names, packings and orders that llama.cpp's converter uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from trivium.kernels.cases import quantized

TypeOf = Callable[[str], str]  # the GGUF type of a matrix, by its name in the file


def write_gguf(model: PreTrainedModel, architecture: str, path: Path, type_of: TypeOf) -> Path:
    """The model is left with the weights that the file holds, that is with the losses of its types."""
    writer = GGUFWriter(path, architecture)
    _write_metadata(writer, model)
    for name, parameter in model.named_parameters():
        for stored_name, part in _stored_parts(model, name, parameter.data):
            order = _stored_order(architecture, model, stored_name, len(part))
            kept = _write_tensor(writer, stored_name, part[order], architecture, type_of)
            part[order] = kept
    if model.config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: GGUFWriter, model: PreTrainedModel) -> None:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)
    if hasattr(config, "num_local_experts"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _stored_parts(model: PreTrainedModel, name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors of the file that a parameter becomes, as views of it."""
    if name.endswith("experts.gate_up_proj"):
        prefix = f"blk.{name.split('.')[2]}.ffn_"
        gate, up = weight.chunk(2, dim=1)
        return [(f"{prefix}gate_exps.weight", gate), (f"{prefix}up_exps.weight", up)]
    if name.endswith("experts.down_proj"):
        return [(f"blk.{name.split('.')[2]}.ffn_down_exps.weight", weight)]
    architecture = {"mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}.get(
        model.config.model_type, model.config.model_type
    )
    enum = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(enum, model.config.num_hidden_layers)
    stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert stored is not None, name
    return [(stored, weight)]


def _stored_order(architecture: str, model: PreTrainedModel, stored_name: str, rows: int) -> Tensor:
    """Row r of the stored tensor is row order[r] of the parameter."""
    order = torch.arange(rows)
    if architecture == "llama" and (".attn_q." in stored_name or ".attn_k." in stored_name):
        config = model.config
        heads = config.num_attention_heads if ".attn_q." in stored_name else config.num_key_value_heads
        return order.reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).flatten()
    return order


def _write_tensor(writer: GGUFWriter, name: str, weight: Tensor, architecture: str, type_of: TypeOf) -> Tensor:
    """Returns what the file holds, as the parameter has it."""
    added = 1.0 if architecture == "gemma3" and name.endswith("norm.weight") else 0.0
    if weight.dim() == 1:
        writer.add_tensor(name, (weight + added).numpy())
        return weight
    kind = GGMLQuantizationType[type_of(name)]
    data = _quantized(weight, kind)
    writer.add_tensor(name, data, raw_dtype=kind)
    return torch.from_numpy(gguf.quants.dequantize(data, kind).astype(np.float32)).view(weight.shape)


def _quantized(weight: Tensor, kind: GGMLQuantizationType) -> np.ndarray:
    try:
        return gguf.quants.quantize(weight.numpy(), kind)
    except NotImplementedError:
        return _random_blocks(weight, kind)


def _random_blocks(weight: Tensor, kind: GGMLQuantizationType) -> np.ndarray:
    """For types that the package reads but does not write: other values, about as large."""

    def draw(scale: float) -> np.ndarray:
        seed = torch.Generator().manual_seed(weight.numel())
        return quantized(seed, kind.name, *weight.shape, scale=scale).data.numpy()

    unit = gguf.quants.dequantize(draw(1e-3), kind).std()
    return draw(1e-3 * float(weight.std() / unit))


def _llama3_factors(model: PreTrainedModel) -> np.ndarray:
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config)
    plain = model.model.rotary_emb.compute_default_rope_parameters(model.config)[0]
    return (plain / scaled).numpy()
