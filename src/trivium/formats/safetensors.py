"""Safetensors weights: one file, or a directory of shards named by an index."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from trivium.formats.json_file import read_bytes
from trivium.formats.mapped_file import MappedFile
from trivium.types.errors import ModelFileError, UnsupportedModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MAX_HEADER_BYTES = 100_000_000  # of the format
MAX_INDEX_BYTES = 64 << 20
# Bounds on what a header makes us hold: it has 4 colons for each tensor, an index has one.
MAX_COLONS = 1 << 18
MAX_COMMAS = 1 << 20

# Bytes per element.
DTYPE_SIZES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}


class TensorEntry(Struct, frozen=True):
    name: str
    dtype: str  # a key of DTYPE_SIZES
    shape: tuple[int, ...]
    nbytes: int


class _HeaderEntry(Struct, frozen=True):
    """As the header's JSON has it; offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]  # tensor name -> file name


class _PlacedTensor(Struct, frozen=True):
    entry: TensorEntry
    file: MappedFile
    offset: int  # bytes from the start of the file


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_HEADER_ENTRY = msgspec.json.Decoder(_HeaderEntry)
_INDEX = msgspec.json.Decoder(_Index)


class SafetensorsFiles:
    def __init__(self, path: Path, files: list[MappedFile], placed: dict[str, _PlacedTensor]) -> None:
        self.path = path
        self.tensors: dict[str, TensorEntry] = {name: one.entry for name, one in placed.items()}
        self._files = files
        self._placed = placed

    @classmethod
    def open(cls, directory_or_file: str | Path) -> SafetensorsFiles:
        path = Path(directory_or_file)
        if not os.path.isdir(path):
            return cls._open_shards(path, [path], None)
        if os.path.exists(path / SINGLE_FILE) or not os.path.exists(path / INDEX_FILE):
            return cls._open_shards(path, [_only_file(path)], None)
        index = _read_index(path / INDEX_FILE)
        return cls._open_shards(path, [path / name for name in sorted(set(index.values()))], index)

    @classmethod
    def _open_shards(cls, path: Path, shards: list[Path], index: dict[str, str] | None) -> SafetensorsFiles:
        files: list[MappedFile] = []
        placed: dict[str, _PlacedTensor] = {}
        try:
            for shard in shards:
                files.append(MappedFile.open(shard))
                held = _read_header(files[-1])
                placed |= {n: one for n, one in held.items() if index is None or index.get(n) == shard.name}
            if index is not None and (missing := index.keys() - placed.keys()):
                name = min(missing)
                raise ModelFileError(
                    f"{path / index[name]}: does not hold tensor {name!r}, which {INDEX_FILE} places there"
                    f" ({len(missing)} of {len(index)} tensors are missing)"
                )
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(path, files, placed)

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._files]

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: a read-only view, no copy."""
        placed = self._place(name)
        return placed.file.view(placed.offset, placed.entry.nbytes)

    def release(self, name: str) -> None:
        """The tensor's bytes will not be read again soon."""
        placed = self._place(name)
        placed.file.release(placed.offset, placed.entry.nbytes)

    def _place(self, name: str) -> _PlacedTensor:
        placed = self._placed.get(name)
        if placed is None:
            raise ModelFileError(f"{self.path}: has no tensor {name!r}")
        return placed

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> SafetensorsFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _only_file(directory: Path) -> Path:
    """The weights of a directory without an index."""
    if os.path.exists(directory / SINGLE_FILE):
        return directory / SINGLE_FILE
    found = sorted(path.name for path in directory.glob("*.safetensors"))
    if not found:
        raise ModelFileError(f"{directory}: holds no weights: no {SINGLE_FILE}, no {INDEX_FILE}")
    if len(found) > 1:
        raise ModelFileError(
            f"{directory}: holds {len(found)} safetensors files ({found[0]} to {found[-1]}) but no {INDEX_FILE}"
        )
    return directory / found[0]


def _read_index(path: Path) -> dict[str, str]:
    data = read_bytes(path, MAX_INDEX_BYTES)
    _check_amount(path, data, "index")
    try:
        weight_map = _INDEX.decode(data).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not a safetensors index: {error}") from None
    if not weight_map:
        raise ModelFileError(f"{path}: names no tensors")
    for name in set(weight_map.values()):
        if Path(name).name != name or "\\" in name or "\0" in name or not name.endswith(".safetensors"):
            raise ModelFileError(f"{path}: names the file {name[:80]!r}, which is not a safetensors file beside it")
        if not os.path.isfile(path.parent / name):
            raise ModelFileError(f"{path}: names the file {name!r}, which is missing")
    return weight_map


def _check_amount(path: Path, data: bytes, what: str) -> None:
    if data.count(b":") > MAX_COLONS or data.count(b",") > MAX_COMMAS:
        raise ModelFileError(f"{path}: the {what} describes more than {MAX_COLONS} entries or {MAX_COMMAS} numbers")


def _read_header(file: MappedFile) -> dict[str, _PlacedTensor]:
    path = file.path
    if file.size < 8:
        raise ModelFileError(f"{path}: is {file.size} bytes long, too short for a safetensors file")
    length = int.from_bytes(file.map[:8], "little")
    if length > file.size - 8:
        raise ModelFileError(f"{path}: claims a header of {length} bytes, but only {file.size - 8} follow")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(f"{path}: claims a header of {length} bytes, the limit is {MAX_HEADER_BYTES}")
    data = file.map[8 : 8 + length]
    _check_amount(path, data, "header")
    try:
        header = _HEADER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path}: its header is not a safetensors header: {error}") from None
    header.pop("__metadata__", None)
    data_start = 8 + length
    placed = {name: _place(file, name, entry, data_start) for name, entry in header.items()}
    _check_places(file, placed, data_start)
    return placed


def _place(file: MappedFile, name: str, raw: msgspec.Raw, data_start: int) -> _PlacedTensor:
    what = f"{file.path}: tensor {name[:80]!r}"
    try:
        entry = _HEADER_ENTRY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{what} is not described as safetensors wants it: {error}") from None
    size = DTYPE_SIZES.get(entry.dtype)
    if size is None:
        raise UnsupportedModelError(f"{what} has the dtype {entry.dtype[:40]!r}, which is not one we read")
    begin, end = entry.data_offsets
    if any(dim < 0 for dim in entry.shape) or not 0 <= begin <= end <= file.size - data_start:
        raise ModelFileError(
            f"{what} of shape {list(entry.shape[:8])} claims bytes {begin} to {end} of the {file.size - data_start} there are"
        )
    if not _holds(entry.shape, size, end - begin):
        raise ModelFileError(
            f"{what} of dtype {entry.dtype} and shape {list(entry.shape[:8])} cannot occupy {end - begin} bytes"
        )
    return _PlacedTensor(TensorEntry(name, entry.dtype, entry.shape, end - begin), file, data_start + begin)


def _holds(shape: tuple[int, ...], item_size: int, nbytes: int) -> bool:
    """Whether a tensor is of exactly this size; stops early, since a hostile shape may have a million large factors."""
    if 0 in shape:
        return nbytes == 0
    product = item_size
    for dim in shape:
        product *= dim
        if product > nbytes:
            return False
    return product == nbytes


def _check_places(file: MappedFile, placed: dict[str, _PlacedTensor], data_start: int) -> None:
    """The tensors must cover the data exactly: no byte in two of them, none in no one."""
    previous_end, previous_name = data_start, ""
    for one in sorted(placed.values(), key=lambda one: (one.offset, one.entry.nbytes)):
        name = one.entry.name
        if one.offset < previous_end:
            raise ModelFileError(
                f"{file.path}: tensors {previous_name[:80]!r} and {name[:80]!r} overlap:"
                f" one ends at byte {previous_end}, the other begins at {one.offset}"
            )
        if one.offset > previous_end:
            raise ModelFileError(
                f"{file.path}: bytes {previous_end} to {one.offset}, before tensor {name[:80]!r}, belong to no tensor"
            )
        previous_end, previous_name = one.offset + one.entry.nbytes, name
    if previous_end != file.size:
        raise ModelFileError(f"{file.path}: bytes {previous_end} to {file.size}, at its end, belong to no tensor")
