"""The engine that a model's files ask for: one that goes on with texts, or one that encodes them.

Torch is imported on the way, not before: kernels are compiled ahead by a process that imports it at the same time.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.config.options import EngineOptions
from trivium.engine.compile_ahead import start_ahead_compiler
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import open_source
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_registry import find_encoder_family
from trivium.types.start_progress import TellProgress, tell_nobody

if TYPE_CHECKING:
    from trivium.engine.core import EngineCore
    from trivium.engine.encoder_core import EncoderCore


def open_core(options: EngineOptions, tell: TellProgress = tell_nobody) -> EngineCore | EncoderCore:
    """`options.model` is a path on this machine: a directory or a .gguf file."""
    if (encoder := encoder_in(options.model)) is not None:
        from trivium.engine.encoder_core import EncoderCore

        return EncoderCore(options, *encoder, tell)
    compiler = start_ahead_compiler(options)
    with compiler or nullcontext():
        from trivium.engine.core import EngineCore

        return EngineCore(options, tell, compiler)


def encoder_in(path: str) -> tuple[HFDirectory, EncoderFamily] | None:
    """None: the model is of the other kind."""
    source = open_source(Path(path))
    family = find_encoder_family(source)
    if family is not None and isinstance(source, HFDirectory):
        return source, family
    source.close()
    return None
