"""Which files make up a model, and what they weigh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from msgspec import Struct

from trivium.formats.gguf import GGUFFile
from trivium.formats.source import ModelSource
from trivium.store.disk import sha256_of
from trivium.store.progress import ByteCount, ProgressCallback, PullStage

# Configuration, tokenizers and templates. Never code (.py), never pickles (.bin, .pt).
SIDE_FILE_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})

MODULES_FILE = "modules.json"  # of an encoder for embeddings; its modules are described in folders beside it


class FileRecord(Struct, frozen=True):
    path: str  # relative to the directory of the model
    size: int  # bytes
    sha256: str


def is_side_file(name: str) -> bool:
    return PurePath(name).suffix in SIDE_FILE_SUFFIXES


def files_of(source: ModelSource) -> list[Path]:
    """All files that belong to a model; opening its weights checks them."""
    if isinstance(source, GGUFFile):
        return source.paths
    beside = (path for path in source.path.iterdir() if is_side_file(path.name) and path.is_file())
    modules = source.path.glob("*/config.json") if (source.path / MODULES_FILE).exists() else ()
    return sorted([*beside, *modules, *source.weights.paths])


def base_of(path: Path) -> Path:
    """The directory that file records of a model at `path` are relative to."""
    return path if path.is_dir() else path.parent


def record_files(base: Path, files: Sequence[Path], progress: ProgressCallback) -> tuple[FileRecord, ...]:
    count = ByteCount(PullStage.CHECKING, sum(file.stat().st_size for file in files), progress)
    return tuple(
        FileRecord(str(file.relative_to(base)), file.stat().st_size, sha256_of(file, count.of(file.name)))
        for file in files
    )
