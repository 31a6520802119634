"""Where a model comes from: a Hugging Face directory or a GGUF file."""

from __future__ import annotations

import os
from pathlib import Path

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.types.errors import ModelFileError

ModelSource = HFDirectory | GGUFFile


def open_source(path: str | Path) -> ModelSource:
    path = Path(path)
    if os.path.isdir(path):
        return HFDirectory.open(path)
    if not os.path.exists(path):
        raise ModelFileError(f"{path}: there is no such file or directory")
    if path.suffix.lower() == ".gguf":
        return GGUFFile.open(path)
    hint = "; name the directory that holds it" if path.suffix == ".safetensors" else ""
    raise ModelFileError(f"{path}: is neither a model directory nor a .gguf file{hint}")
