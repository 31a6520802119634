"""What a person wants to know of a model before running it, read from its files without loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import ModelSource
from trivium.store.model_files import files_of

# GGUF's general.file_type: names of mixtures that no single tensor type tells (llama.cpp's `llama_ftype`).
GGUF_FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    21: "Q2_K_S",
    32: "BF16",
}


class ModelSummary(Struct, frozen=True):
    format: str  # "gguf" or "huggingface"
    architecture: str | None
    parameters: int
    quantization: str  # a GGUF mixture, a quantization method, or the dtype that holds most of the bytes
    context_length: int | None  # tokens
    embedding_length: int | None
    has_chat_template: bool
    size: int  # bytes, of all files
    path: Path
    packed: tuple[Path, ...] = ()  # its weights as the kernels lay them, in each form that was used
    name: str | None = None  # in the store
    source: str | None = None  # in the store
    created: str | None = None  # in the store


def summarize(source: ModelSource) -> ModelSummary:
    return _summarize_gguf(source) if isinstance(source, GGUFFile) else _summarize_directory(source)


def format_of(source: ModelSource) -> str:
    return "gguf" if isinstance(source, GGUFFile) else "huggingface"


def _summarize_gguf(file: GGUFFile) -> ModelSummary:
    architecture = file.get_str("general.architecture", None)
    return ModelSummary(
        format=format_of(file),
        architecture=architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        quantization=GGUF_FILE_TYPES.get(file.get_int("general.file_type", -1))
        or _heaviest((tensor.type, tensor.nbytes) for tensor in file.tensors.values()),
        context_length=file.get_int(f"{architecture}.context_length", None),
        embedding_length=file.get_int(f"{architecture}.embedding_length", None),
        has_chat_template="tokenizer.chat_template" in file.metadata,
        size=sum(path.stat().st_size for path in file.paths),
        path=file.path,
    )


def _summarize_directory(directory: HFDirectory) -> ModelSummary:
    config = directory.config
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else config
    tensors = directory.weights.tensors.values()
    method = _quantization_method(config) or _heaviest((tensor.dtype, tensor.nbytes) for tensor in tensors)
    return ModelSummary(
        format=format_of(directory),
        architecture=_architecture(config),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        quantization=method,
        context_length=_whole_number(text.get("max_position_embeddings")),
        embedding_length=_whole_number(text.get("hidden_size")),
        has_chat_template=_has_chat_template(directory),
        size=sum(path.stat().st_size for path in files_of(directory)),
        path=directory.path,
    )


def _architecture(config: dict[str, Any]) -> str | None:
    listed = config.get("architectures")
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        return listed[0]
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else None


def _quantization_method(config: dict[str, Any]) -> str | None:
    stated = config.get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    return method if isinstance(method, str) else None


def _has_chat_template(directory: HFDirectory) -> bool:
    return (
        (directory.path / "chat_template.jinja").exists()
        or "chat_template" in directory.read_json("chat_template.json")
        or "chat_template" in directory.read_json("tokenizer_config.json")
    )


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None


def _heaviest(sizes: Iterable[tuple[str, int]]) -> str:
    """The type that holds the most bytes."""
    totals: Counter[str] = Counter()
    for type, nbytes in sizes:
        totals[type] += nbytes
    return totals.most_common(1)[0][0] if totals else "none"
