"""The engine that a model's files ask for: one that goes on with texts, or one that encodes them."""

from __future__ import annotations

from pathlib import Path

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.engine.encoder_core import EncoderCore
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import open_source
from trivium.models.encoder_registry import find_encoder_family


def open_core(options: EngineOptions) -> EngineCore | EncoderCore:
    """`options.model` is a path on this machine: a directory or a .gguf file."""
    source = open_source(Path(options.model))
    family = find_encoder_family(source)
    if family is not None and isinstance(source, HFDirectory):
        return EncoderCore(options, source, family)
    source.close()
    return EngineCore(options)
