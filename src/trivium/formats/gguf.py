"""GGUF files (versions 2 and 3, little endian): metadata, a table of tensors, and views of their bytes.

A model may be split over files named `…-00001-of-00003.gguf`; opening the first opens them all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from trivium.formats.gguf_metadata import Cursor, GGUFMetadata, MetadataValue
from trivium.formats.mapped_file import MappedFile
from trivium.formats.quant_types import QUANT_TYPES_BY_GGUF_ID, UNREAD_GGUF_TYPES
from trivium.types.errors import ModelFileError, UnsupportedModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_TENSORS = 1 << 16
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMS = 4  # of ggml's tensors
MAX_ELEMENTS = (1 << 63) - 1
MAX_FILES = 1 << 10

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

_Default = TypeVar("_Default")
_Value = TypeVar("_Value")


class _Required:
    """Stands where a getter was given no default."""


_REQUIRED = _Required()


class GGUFTensor(Struct, frozen=True):
    name: str
    type: str  # a key of QUANT_TYPES
    shape: tuple[int, ...]  # outermost first, as torch has it; the file has it the other way round
    nbytes: int


class _PlacedTensor(Struct, frozen=True):
    tensor: GGUFTensor
    file: MappedFile
    offset: int  # bytes from the start of the file


class GGUFFile:
    def __init__(self, files: list[MappedFile], metadata: GGUFMetadata, placed: dict[str, _PlacedTensor]) -> None:
        self.path = files[0].path
        self.metadata: Mapping[str, MetadataValue] = metadata
        self.tensors: dict[str, GGUFTensor] = {name: one.tensor for name, one in placed.items()}
        self._files = files
        self._placed = placed

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        files = [MappedFile.open(Path(path))]
        try:
            metadata, placed = _read_tables(files[0])
            for other in _other_splits(files[0].path, metadata):
                files.append(MappedFile.open(other))
                _, more = _read_tables(files[-1])
                if twice := placed.keys() & more.keys():
                    raise ModelFileError(f"{other}: tensor {min(twice)!r} is in an earlier part of the model too")
                placed.update(more)
            _check_split_total(files, metadata, len(placed))
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(files, metadata, placed)

    @property
    def paths(self) -> list[Path]:
        """All files of the model, the first first."""
        return [file.path for file in self._files]

    @property
    def architecture(self) -> str:
        return self.get_str("general.architecture")

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: a read-only view, no copy."""
        placed = self._place(name)
        return placed.file.view(placed.offset, placed.tensor.nbytes)

    def release(self, name: str) -> None:
        """The tensor's bytes will not be read again soon."""
        placed = self._place(name)
        placed.file.release(placed.offset, placed.tensor.nbytes)

    def _place(self, name: str) -> _PlacedTensor:
        placed = self._placed.get(name)
        if placed is None:
            raise ModelFileError(f"{self.path}: has no tensor {name!r}")
        return placed

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Typed getters: a key that is missing without a default, or of another type, is a ModelFileError.

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: _Default) -> int | _Default: ...
    def get_int(self, key: str, default: object = _REQUIRED) -> object:
        value = self._get(key, default)
        if value is default or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self._wrong_type(key, "an integer", value)

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: _Default) -> float | _Default: ...
    def get_float(self, key: str, default: object = _REQUIRED) -> object:
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        self._wrong_type(key, "a number", value)

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: _Default) -> bool | _Default: ...
    def get_bool(self, key: str, default: object = _REQUIRED) -> object:
        value = self._get(key, default)
        if value is default or isinstance(value, bool):
            return value
        self._wrong_type(key, "true or false", value)

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: _Default) -> str | _Default: ...
    def get_str(self, key: str, default: object = _REQUIRED) -> object:
        value = self._get(key, default)
        if value is default or isinstance(value, str):
            return value
        self._wrong_type(key, "a string", value)

    @overload
    def get_list(self, key: str, item: type[_Value]) -> list[_Value]: ...
    @overload
    def get_list(self, key: str, item: type[_Value], default: _Default) -> list[_Value] | _Default: ...
    def get_list(self, key: str, item: type[_Value], default: object = _REQUIRED) -> object:
        """An array whose items are all of one Python type: `get_list("tokenizer.ggml.tokens", str)`."""
        value = self._get(key, default)
        if value is default:
            return value
        # All items of a GGUF array are of one type, so the first speaks for them.
        if isinstance(value, list) and (not value or type(value[0]) is item):
            return value
        self._wrong_type(key, f"a list of {item.__name__}", value)

    def _get(self, key: str, default: object) -> object:
        if key in self.metadata:
            return self.metadata[key]
        if isinstance(default, _Required):
            raise ModelFileError(f"{self.path}: has no metadata key {key!r}")
        return default

    def _wrong_type(self, key: str, wanted: str, value: object) -> NoReturn:
        shown = repr(value)[:40] if not isinstance(value, list) else f"a list of {len(value)} items"
        raise ModelFileError(f"{self.path}: metadata key {key!r} must be {wanted}, but it is {shown}")


def _read_tables(file: MappedFile) -> tuple[GGUFMetadata, dict[str, _PlacedTensor]]:
    cursor = Cursor(file)
    _check_magic_and_version(cursor)
    tensor_count = cursor.uint64("the tensor count")
    key_count = cursor.uint64("the metadata key count")
    if tensor_count > MAX_TENSORS:
        cursor.fail(f"claims {tensor_count} tensors, the limit is {MAX_TENSORS}")
    metadata = GGUFMetadata.read(cursor, key_count)
    return metadata, _read_tensors(cursor, tensor_count, _alignment(file, metadata))


def _check_magic_and_version(cursor: Cursor) -> None:
    path = cursor.file.path
    start = cursor.skip(4, "the magic number")
    magic = cursor.file.map[start : start + 4]
    if magic != MAGIC:
        cursor.fail(f"is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.uint32("the version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModelError(f"{path}: is a big-endian GGUF file; only little-endian ones are read")
    if version not in VERSIONS:
        raise UnsupportedModelError(f"{path}: is GGUF version {version}; versions 2 and 3 are read")


def _alignment(file: MappedFile, metadata: GGUFMetadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        shown = alignment if isinstance(alignment, int | float) else f"a {type(alignment).__name__}"
        raise ModelFileError(
            f"{file.path}: general.alignment must be a power of two from 8 to {MAX_ALIGNMENT}, but it is {shown}"
        )
    return alignment


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, _PlacedTensor]:
    placed: dict[str, _PlacedTensor] = {}
    for index in range(count):
        name = cursor.name(f"the name of tensor {index} of {count}", MAX_TENSOR_NAME_BYTES)
        if name in placed:
            cursor.fail(f"tensor {name!r} appears twice")
        placed[name] = _read_tensor(cursor, name, alignment)
    # The data begins at the first aligned byte after the table; until here offsets counted from there.
    data_start = -(-cursor.position // alignment) * alignment
    placed = {name: _PlacedTensor(one.tensor, one.file, data_start + one.offset) for name, one in placed.items()}
    _check_places(cursor.file, placed)
    return placed


def _read_tensor(cursor: Cursor, name: str, alignment: int) -> _PlacedTensor:
    what = f"tensor {name!r}"
    num_dims = cursor.uint32(f"the number of dimensions of {what}")
    if num_dims > MAX_DIMS:
        cursor.fail(f"{what} claims {num_dims} dimensions, the limit is {MAX_DIMS}")
    dims = [cursor.uint64(f"dimension {index} of {what}") for index in range(num_dims)]
    type_id = cursor.uint32(f"the type of {what}")
    offset = cursor.uint64(f"the offset of {what}")

    type = QUANT_TYPES_BY_GGUF_ID.get(type_id)
    if type is None:
        known = UNREAD_GGUF_TYPES.get(type_id)
        shown = f"of type {known}" if known else f"of the unknown type {type_id}"
        raise UnsupportedModelError(f"{cursor.file.path}: {what} is {shown}, which is not one we read")
    elements = math.prod(dims)
    if not 0 < elements <= MAX_ELEMENTS:
        cursor.fail(f"{what} has the impossible dimensions {dims}")
    row = dims[0] if dims else 1
    if row % type.block_elements:
        cursor.fail(
            f"{what} has rows of {row} elements, not a multiple of the {type.block_elements} of a {type.name} block"
        )
    if offset % alignment:
        cursor.fail(f"{what} begins at offset {offset}, which is not a multiple of the alignment {alignment}")
    nbytes = elements // type.block_elements * type.block_bytes
    return _PlacedTensor(GGUFTensor(name, type.name, tuple(reversed(dims)), nbytes), cursor.file, offset)


def _check_places(file: MappedFile, placed: dict[str, _PlacedTensor]) -> None:
    """Every tensor inside the file, no byte in two tensors."""
    previous_end, previous_name = 0, ""
    for one in sorted(placed.values(), key=lambda one: one.offset):
        name, end = one.tensor.name, one.offset + one.tensor.nbytes
        if end > file.size:
            raise ModelFileError(
                f"{file.path}: tensor {name!r} occupies bytes {one.offset} to {end},"
                f" but the file ends at {file.size}; it may be truncated"
            )
        if one.offset < previous_end:
            raise ModelFileError(
                f"{file.path}: tensors {previous_name!r} and {name!r} overlap:"
                f" one ends at byte {previous_end}, the other begins at {one.offset}"
            )
        previous_end, previous_name = end, name


def _other_splits(first: Path, metadata: GGUFMetadata) -> list[Path]:
    """The files after the first of a split model, by its metadata and their names."""
    count = metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= MAX_FILES:
        raise ModelFileError(f"{first}: split.count must be a whole number up to {MAX_FILES}")
    if count <= 1:
        return []
    if metadata.get("split.no", 0) != 0:
        raise ModelFileError(f"{first}: is a later part of a model split over {count} files; name its first part")
    match = _SPLIT_NAME.fullmatch(first.name)
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise ModelFileError(
            f"{first}: is the first of {count} files of one model, so its name must end in -00001-of-{count:05}.gguf"
        )
    return [first.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(2, count + 1)]


def _check_split_total(files: list[MappedFile], metadata: GGUFMetadata, tensors: int) -> None:
    claimed = metadata.get("split.tensors.count", tensors)
    if len(files) > 1 and claimed != tensors:
        raise ModelFileError(
            f"{files[0].path}: its {len(files)} files hold {tensors} tensors, not the {claimed} it claims"
        )
