"""Where a model comes from: a Hugging Face directory or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.types.errors import ModelFileError

ModelSource = HFDirectory | GGUFFile


def open_source(path: str | Path) -> ModelSource:
    path = Path(path)
    if path.is_dir():
        return HFDirectory.open(path)
    if not path.exists():
        raise ModelFileError(f"{path}: there is no such file or directory")
    if path.suffix.lower() == ".gguf":
        return GGUFFile.open(path)
    hint = "; name the directory that holds it" if path.suffix == ".safetensors" else ""
    raise ModelFileError(f"{path}: is neither a model directory nor a .gguf file{hint}")
