"""Facts and weight names that families share when they are read from a GGUF file."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from trivium.formats.gguf import GGUFFile
from trivium.models.spec import (
    AttentionSpec,
    LinearScaling,
    LongropeScaling,
    ModelSpec,
    MoeSpec,
    NormSpec,
    RopeScaling,
    RopeSpec,
    YarnScaling,
    check_num_layers,
    check_size,
)
from trivium.models.weights import Place, Places
from trivium.types.errors import ModelFileError, UnsupportedModelError

FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

ROPE_FACTORS = "rope_freqs.weight"
ROPE_SHORT_FACTORS = "rope_factors_short.weight"
ROPE_LONG_FACTORS = "rope_factors_long.weight"
NOT_WEIGHTS = (ROPE_FACTORS, ROPE_SHORT_FACTORS, ROPE_LONG_FACTORS)  # tensors that are facts: they go into the spec

_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.o": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention_post_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "router": "ffn_gate_inp",
}

GGUF_PLACES: Places = {
    "embedding.weight": (Place("token_embd.weight"),),
    "final_norm.weight": (Place("output_norm.weight"),),
    "lm_head.weight": (Place("output.weight"),),
    **{
        f"layers.{{i}}.{ours}.{kind}": (Place(f"blk.{{i}}.{theirs}.{kind}"),)
        for ours, theirs in _LAYER_NAMES.items()
        for kind in ("weight", "bias")
    },
    **{
        f"layers.{{i}}.experts.{part}.weight": (
            Place(f"blk.{{i}}.ffn_{part}_exps.weight"),
            Place(f"blk.{{i}}.ffn_{part}.{{e}}.weight"),  # files written before experts were merged
        )
        for part in ("gate", "up", "down")
    },
}


def gguf_spec(file: GGUFFile, family: str, **facts: Any) -> ModelSpec:
    """A decoder of the common shape; `facts` are the fields of ModelSpec in which the family differs."""
    architecture = file.architecture
    num_layers = gguf_num_layers(file)
    common = ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=file.get_int(f"{architecture}.embedding_length"),
        num_heads=gguf_num_heads(file),
        num_kv_heads=_num_kv_heads(file),
        head_dim=gguf_head_dim(file),
        intermediate_size=_same_in_all_layers(file, "feed_forward_length"),
        vocab_size=_vocab_size(file),
        max_position=file.get_int(f"{architecture}.context_length"),
        dtype=FLOAT_TYPES.get(_main_type(file), "float32"),
        quantization=None if _main_type(file) in FLOAT_TYPES else _main_type(file),
        windows=(file.get_int(f"{architecture}.attention.sliding_window", None) or None,) * num_layers,
        attention=gguf_attention(file),
        norm=NormSpec(eps=file.get_float(f"{architecture}.attention.layer_norm_rms_epsilon")),
        rope=gguf_rope(file),
        moe=_moe(file),
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        tied_embeddings="output.weight" not in file.tensors,
        bos_id=file.get_int("tokenizer.ggml.bos_token_id", None),
        eos_ids=_eos_ids(file),
    )
    return msgspec.structs.replace(common, **facts)


def gguf_num_layers(file: GGUFFile) -> int:
    return check_num_layers(file.get_int(f"{file.architecture}.block_count"))


def gguf_num_heads(file: GGUFFile) -> int:
    return _same_in_all_layers(file, "attention.head_count")


def _num_kv_heads(file: GGUFFile) -> int:
    if f"{file.architecture}.attention.head_count_kv" not in file.metadata:
        return gguf_num_heads(file)
    return _same_in_all_layers(file, "attention.head_count_kv")


def gguf_head_dim(file: GGUFFile) -> int:
    prefix = f"{file.architecture}.attention"
    hidden = file.get_int(f"{file.architecture}.embedding_length")
    head_dim = file.get_int(f"{prefix}.key_length", hidden // max(gguf_num_heads(file), 1))
    values = file.get_int(f"{prefix}.value_length", head_dim)
    if values != head_dim:
        raise UnsupportedModelError(f"{file.path}: keys of {head_dim} elements with values of {values} are not run")
    return check_size("head_dim", head_dim)


def gguf_attention(file: GGUFFile, scale: float | None = None) -> AttentionSpec:
    """What a layer has is told by the first layer's tensors."""
    default = gguf_head_dim(file) ** -0.5 if scale is None else scale
    return AttentionSpec(
        scale=file.get_float(f"{file.architecture}.attention.scale", default),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        softcap=file.get_float(f"{file.architecture}.attn_logit_softcapping", None),
    )


def _same_in_all_layers(file: GGUFFile, name: str) -> int:
    """A number that some files give once, and some as a list with an entry per layer."""
    key = f"{file.architecture}.{name}"
    if not isinstance(file.metadata.get(key), list):
        return file.get_int(key)
    numbers = set(file.get_list(key, int))
    if len(numbers) != 1:
        raise UnsupportedModelError(f"{file.path}: {key} differs between layers, and such models are not run")
    return numbers.pop()


def _vocab_size(file: GGUFFile) -> int:
    """Of the embedding itself: some files' metadata count tokens that it has no rows for, or the reverse."""
    if "token_embd.weight" not in file.tensors:
        raise ModelFileError(f"{file.path}: has no tensor 'token_embd.weight'")
    shape = file.tensors["token_embd.weight"].shape
    return shape[0] if shape else 0


def _main_type(file: GGUFFile) -> str:
    """The type of most matrices."""
    types = Counter(tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1)
    return types.most_common(1)[0][0] if types else "F32"


def _moe(file: GGUFFile) -> MoeSpec | None:
    prefix = file.architecture
    num_experts = file.get_int(f"{prefix}.expert_count", 0)
    if num_experts == 0:
        return None
    intermediate_size = file.get_int(f"{prefix}.expert_feed_forward_length", None)
    return MoeSpec(
        num_experts=num_experts,
        top_k=file.get_int(f"{prefix}.expert_used_count"),
        intermediate_size=intermediate_size or _same_in_all_layers(file, "feed_forward_length"),
        norm_topk_prob=file.get_bool(f"{prefix}.expert_weights_norm", True),
        sparse_layers=tuple(i for i in range(gguf_num_layers(file)) if f"blk.{i}.ffn_gate_inp.weight" in file.tensors),
    )


def _eos_ids(file: GGUFFile) -> tuple[int, ...]:
    """End of text, of turn, of message: generation stops at any."""
    found = (file.get_int(f"tokenizer.ggml.{end}_token_id", None) for end in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(id for id in found if id is not None))


def gguf_rope(file: GGUFFile) -> RopeSpec:
    return RopeSpec(
        theta=file.get_float(f"{file.architecture}.rope.freq_base", 10_000.0),
        dim=_rope_dim(file),
        scaling=_gguf_scaling(file),
        frequency_factors=_factors(file, ROPE_FACTORS) if ROPE_FACTORS in file.tensors else (),
    )


def _rope_dim(file: GGUFFile) -> int:
    return file.get_int(f"{file.architecture}.rope.dimension_count", gguf_head_dim(file))


def _gguf_scaling(file: GGUFFile) -> RopeScaling | None:
    prefix = f"{file.architecture}.rope.scaling"
    factor = file.get_float(f"{prefix}.factor", 1.0) or 1.0
    max_position = file.get_int(f"{file.architecture}.context_length")
    original = file.get_int(f"{prefix}.original_context_length", max_position)
    own_factor = file.get_float(f"{prefix}.attn_factor", 1.0)
    # Long factors come without a type; a factor without a type is linear.
    kind = file.get_str(f"{prefix}.type", "longrope" if ROPE_LONG_FACTORS in file.tensors else "linear")
    match kind:
        case "none":
            return None
        case "linear":
            return None if factor == 1.0 else LinearScaling(factor=factor)
        case "yarn":
            return YarnScaling(
                factor=factor,
                original_max_position=original,
                attention_factor=own_factor * (1.0 + 0.1 * math.log(max(factor, 1.0))),
                beta_fast=file.get_float(f"{prefix}.yarn_beta_fast", 32.0),
                beta_slow=file.get_float(f"{prefix}.yarn_beta_slow", 1.0),
            )
        case "longrope":
            return LongropeScaling(
                short_factors=_factors(file, ROPE_SHORT_FACTORS),
                long_factors=_factors(file, ROPE_LONG_FACTORS),
                original_max_position=original,
                attention_factor=own_factor,
            )
    raise UnsupportedModelError(f"{file.path}: rope scaling of type {kind!r} is not one we compute")


def _factors(file: GGUFFile, name: str) -> tuple[float, ...]:
    """A divisor for each frequency, from a small float tensor."""
    data, tensor, wanted = file.read(name), file.tensors[name], _rope_dim(file) // 2
    if tensor.type != "F32" or tensor.shape != (wanted,):
        raise ModelFileError(
            f"{file.path}: tensor {name!r} is {tensor.type} of shape {list(tensor.shape)}, not F32 of [{wanted}]"
        )
    return tuple(data.view(np.float32).tolist())
