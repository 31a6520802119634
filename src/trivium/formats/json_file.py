"""Small JSON files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trivium.formats.mapped_file import MappedFile
from trivium.types.errors import ModelFileError

# A parsed JSON text takes up to some thirty times its size; the largest real config files are a few hundred KiB.
MAX_JSON_BYTES = 2 << 20


def read_bytes(path: Path, max_bytes: int) -> bytes:
    file = MappedFile.open(path)
    try:
        if file.size > max_bytes:
            raise ModelFileError(f"{path}: is {file.size} bytes long, the limit is {max_bytes}")
        return file.map[:]
    finally:
        file.close()


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; the infinities and NaNs that Python's own writer emits are let through."""
    value = _read_json(path)
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: must hold a JSON object, but it holds a {type(value).__name__}")
    return value


def read_json_list(path: Path) -> list[Any]:
    value = _read_json(path)
    if not isinstance(value, list):
        raise ModelFileError(f"{path}: must hold a JSON list, but it holds a {type(value).__name__}")
    return value


def _read_json(path: Path) -> Any:
    text = read_bytes(path, MAX_JSON_BYTES)
    try:
        return json.loads(text)
    except RecursionError:
        raise ModelFileError(f"{path}: is JSON nested too deep") from None
    except ValueError as error:
        raise ModelFileError(f"{path}: is not valid JSON: {error}") from None
