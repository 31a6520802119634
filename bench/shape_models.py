"""GGUF files with the shapes of public models and random weights, in the mixtures of types that llama.cpp makes.

They hold a tokenizer that is only as much of one as a reader asks for: prompts are token ids.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import torch

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.cases import quantized

Item = TypeVar("Item")

ALIGNMENT = 32

# Scales at which random blocks of a type have values of about 0.02, as trained weights do.
_SCALES = {"Q4_K": 1.5e-4, "Q6_K": 2e-5, "Q8_0": 5e-4, "BF16": 0.035}
_FILE_TYPES = {"Q4_K_M": 15, "Q8_0": 7, "BF16": 32}  # `general.file_type` of GGUF


@dataclass(frozen=True)
class Shape:
    name: str
    architecture: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    qk_norm: bool


# Embeddings are tied in both.
SHAPES = (
    Shape("llama-3.2-1b", "llama", 128256, 2048, 8192, 16, 32, 8, 64, 500_000.0, False),
    Shape("qwen3-0.6b", "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 1_000_000.0, True),
)
MIXTURES = ("Q4_K_M", "Q8_0", "BF16")


def model_name(shape: Shape, mixture: str) -> str:
    return f"{shape.name}-{mixture}"


def model_names() -> list[str]:
    return [model_name(shape, mixture) for shape in SHAPES for mixture in MIXTURES]


@dataclass(frozen=True)
class TensorPlan:
    name: str
    shape: tuple[int, ...]  # outermost first
    type: str

    @property
    def nbytes(self) -> int:
        kind = QUANT_TYPES[self.type]
        return math.prod(self.shape) // kind.block_elements * kind.block_bytes


def write_shape_model(shape: Shape, mixture: str, folder: Path) -> Path:
    path = folder / f"{model_name(shape, mixture)}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            _write(file, shape, mixture)
        part.rename(path)
    return path


def bytes_for_a_token(shape: Shape, mixture: str) -> int:
    """Of weights, read for one new token: every matrix, once."""
    return sum(plan.nbytes for plan in _plans(shape, mixture) if len(plan.shape) == 2)


def _plans(shape: Shape, mixture: str) -> list[TensorPlan]:
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    plain = "Q4_K" if mixture == "Q4_K_M" else mixture
    plans = [
        TensorPlan("token_embd.weight", (shape.vocab, hidden), "Q6_K" if mixture == "Q4_K_M" else mixture),
        TensorPlan("output_norm.weight", (hidden,), "F32"),
    ]
    for i in range(shape.layers):
        finer = "Q6_K" if mixture == "Q4_K_M" and _gets_more_bits(i, shape.layers) else plain
        parts: list[tuple[str, tuple[int, ...], str]] = [
            ("attn_norm", (hidden,), "F32"),
            ("attn_q", (q, hidden), plain),
            ("attn_k", (kv, hidden), plain),
            ("attn_v", (kv, hidden), finer),
            ("attn_output", (hidden, q), plain),
            ("ffn_norm", (hidden,), "F32"),
            ("ffn_gate", (shape.intermediate, hidden), plain),
            ("ffn_up", (shape.intermediate, hidden), plain),
            ("ffn_down", (hidden, shape.intermediate), finer),
        ]
        if shape.qk_norm:
            parts += [("attn_q_norm", (shape.head_dim,), "F32"), ("attn_k_norm", (shape.head_dim,), "F32")]
        plans += [TensorPlan(f"blk.{i}.{name}.weight", dims, type) for name, dims, type in parts]
    return plans


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's choice for values and down projections in a medium mixture: the ends, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _write(file: BinaryIO, shape: Shape, mixture: str) -> None:
    plans = _plans(shape, mixture)
    metadata = _metadata(shape, mixture)
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(plans), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + value)
    offset = 0
    for plan in plans:
        dims = reversed(plan.shape)
        header = struct.pack(f"<I{len(plan.shape)}Q", len(plan.shape), *dims)
        file.write(_string(plan.name) + header + struct.pack("<IQ", QUANT_TYPES[plan.type].gguf_id, offset))
        offset += _aligned(plan.nbytes)
    random = torch.Generator().manual_seed(0)
    for plan in plans:
        file.write(bytes(_aligned(file.tell()) - file.tell()))
        if plan.type == "F32":
            data = torch.ones(plan.shape).view(torch.uint8)
        else:
            data = quantized(random, plan.type, *plan.shape, scale=_SCALES[plan.type]).data
        data.numpy().tofile(file)
    file.write(bytes(_aligned(file.tell()) - file.tell()))


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


# --- metadata: each value with the number of its GGUF type before it


def _metadata(shape: Shape, mixture: str) -> dict[str, bytes]:
    tokens = [f"<{i}>" for i in range(shape.vocab)]
    tokens[:256] = _byte_letters()
    kinds = [1] * 256 + [4] * (shape.vocab - 256)  # ordinary; the reader's own business
    prefix = shape.architecture
    return {
        "general.architecture": _text(prefix),
        "general.name": _text(shape.name),
        "general.file_type": _number(_FILE_TYPES[mixture]),
        f"{prefix}.context_length": _number(32768),
        f"{prefix}.embedding_length": _number(shape.hidden),
        f"{prefix}.block_count": _number(shape.layers),
        f"{prefix}.feed_forward_length": _number(shape.intermediate),
        f"{prefix}.attention.head_count": _number(shape.heads),
        f"{prefix}.attention.head_count_kv": _number(shape.kv_heads),
        f"{prefix}.attention.key_length": _number(shape.head_dim),
        f"{prefix}.attention.value_length": _number(shape.head_dim),
        f"{prefix}.attention.layer_norm_rms_epsilon": _real(1e-6),
        f"{prefix}.rope.dimension_count": _number(shape.head_dim),
        f"{prefix}.rope.freq_base": _real(shape.rope_theta),
        f"{prefix}.vocab_size": _number(shape.vocab),
        "tokenizer.ggml.model": _text("gpt2"),
        "tokenizer.ggml.pre": _text("default"),
        "tokenizer.ggml.tokens": _list(8, tokens, _string),
        "tokenizer.ggml.token_type": _list(5, kinds, lambda kind: struct.pack("<i", kind)),
        "tokenizer.ggml.merges": _list(8, ["a b"], _string),
        "tokenizer.ggml.bos_token_id": _number(256),
        "tokenizer.ggml.eos_token_id": _number(257),
    }


def _byte_letters() -> list[str]:
    """A letter for each byte, as byte-level vocabularies spell them: printable ones as they are."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _text(text: str) -> bytes:
    return struct.pack("<I", 8) + _string(text)


def _number(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def _real(value: float) -> bytes:
    return struct.pack("<If", 6, value)


def _list(kind: int, items: Sequence[Item], encode: Callable[[Item], bytes]) -> bytes:
    return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(map(encode, items))
