"""What one file of `families/` declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trivium.formats.gguf import GGUFFile
from trivium.models.from_huggingface import HFConfig
from trivium.models.spec import ModelSpec
from trivium.models.weights import Places


@dataclass(frozen=True)
class Family:
    name: str
    hf_architectures: tuple[str, ...]  # as in config.json
    gguf_architectures: tuple[str, ...]  # as in general.architecture; () where another family reads those files
    hf_spec: Callable[[HFConfig], ModelSpec]
    gguf_spec: Callable[[GGUFFile], ModelSpec]
    hf_places: Places
    gguf_places: Places
    hf_prefixes: tuple[tuple[str, str], ...] = ()  # beginnings of tensor names and what they are read as
    hf_ignored: tuple[str, ...] = ()  # beginnings of names, after that, of tensors that are not part of the decoder
    sparse: bool = False  # tells apart two families that share a GGUF architecture: this one has experts
