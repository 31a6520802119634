"""The engine that a model's files ask for: one that goes on with texts, or one that encodes them."""

from __future__ import annotations

from pathlib import Path

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.engine.encoder_core import EncoderCore
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import open_source
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_registry import find_encoder_family
from trivium.types.start_progress import TellProgress, tell_nobody


def open_core(options: EngineOptions, tell: TellProgress = tell_nobody) -> EngineCore | EncoderCore:
    """`options.model` is a path on this machine: a directory or a .gguf file."""
    if (encoder := encoder_in(options.model)) is not None:
        return EncoderCore(options, *encoder, tell)
    return EngineCore(options, tell)


def encoder_in(path: str) -> tuple[HFDirectory, EncoderFamily] | None:
    """None: the model is of the other kind."""
    source = open_source(Path(path))
    family = find_encoder_family(source)
    if family is not None and isinstance(source, HFDirectory):
        return source, family
    source.close()
    return None
