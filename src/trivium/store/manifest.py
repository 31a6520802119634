"""What the store remembers of a model: one small JSON file beside it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from trivium.faults import fault_point
from trivium.store.model_files import FileRecord, base_of
from trivium.types.errors import ModelFileError

MANIFEST_FILE = "manifest.json"


class Manifest(Struct, frozen=True):
    name: str
    source: str  # what was pulled: a path, hub:org/name, a package requirement
    format: str  # "gguf" or "huggingface"
    path: str  # of the model; relative to the manifest if the store owns the files, absolute if it only refers to them
    owned: bool
    size: int  # bytes, of all files
    files: tuple[FileRecord, ...]
    created: str  # ISO 8601, UTC


class StoredModel(Struct, frozen=True):
    manifest: Manifest
    path: Path  # what `open_source` opens

    @property
    def name(self) -> str:
        return self.manifest.name

    def problem(self) -> str | None:
        """What is wrong with the files at a glance (missing, another size); None if nothing. Contents are not read."""
        base = base_of(self.path)
        for file in self.manifest.files:
            try:
                size = (base / file.path).stat().st_size
            except OSError:
                return f"{base / file.path} is missing"
            if size != file.size:
                return f"{base / file.path} is {size} bytes long, not {file.size}"
        return None


def read_manifest(directory: Path) -> StoredModel | None:
    """The model stored in `directory`; None if there is none."""
    file = directory / MANIFEST_FILE
    try:
        fault_point("store.read_manifest")
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{file}: is damaged: {error}") from None
    inside = PurePosixPath(manifest.path)
    if manifest.owned and (inside.is_absolute() or ".." in inside.parts):
        raise ModelFileError(f"{file}: is damaged: the path {manifest.path!r} leaves the store")
    return StoredModel(manifest, directory / manifest.path if manifest.owned else Path(manifest.path))


def write_manifest(directory: Path, manifest: Manifest) -> None:
    fault_point("store.write_manifest")
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (directory / MANIFEST_FILE).write_bytes(data + b"\n")
