"""Packed files: a model's weights as the native kernels lay them, kept so that the next start maps them.

    magic | bytes of the header (u64) | checksum of the header (u64) | header (msgpack) | weights, each from a page on

One file for each model's path and each form of its weights. A file is written whole under another name and then renamed; it is believed only if the
model's files are those it was made from and every checksum is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import CONFIG_FILE
from trivium.formats.mapped_file import MappedFile
from trivium.formats.source import ModelSource
from trivium.types.errors import ModelFileError

MAGIC = b"TRIVPACK"
SUFFIX = ".packed"
# As the weights are stored; as rows of bytes; some as the one, some as the other; units of bytes beside both; bfloat16 in fewer
# bits; and rows of bytes of floats too.
PackedForm = Literal["blocks", "rows", "mixed", "units", "short", "int8"]
FORM_SUFFIXES: dict[PackedForm, str] = {
    "blocks": SUFFIX,
    "rows": f".rows{SUFFIX}",
    "mixed": f".mixed{SUFFIX}",
    "units": f".units{SUFFIX}",
    "short": f".short{SUFFIX}",
    "int8": f".int8{SUFFIX}",
}
FOLDER = "packed"  # under the root of the store
PAGE_BYTES = 4096
MAX_HEADER_BYTES = 64 << 20

_PREFIX = struct.Struct("<8sQQ")  # magic, bytes of the header, the first 8 bytes of its sha256
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of a source file


class SourceFile(Struct, frozen=True):
    path: str  # absolute, without links
    size: int
    mtime_ns: int
    sample: str  # sha256 of its size and of parts all over it


class PackedWeight(Struct, frozen=True):
    name: str
    type: str  # a name in QUANT_TYPES, or a form that no file of a model has
    shape: tuple[int, ...]  # of the weight, not of the packed bytes
    offset: int  # bytes from the start of the file
    nbytes: int
    checksum: int


class PackedHeader(Struct, frozen=True):
    version: int  # of the layout
    source: tuple[SourceFile, ...]
    weights: tuple[PackedWeight, ...]


class PackedFile:
    """A sound header over a mapped file. What the weights hold is for the reader to check."""

    def __init__(self, header: PackedHeader, file: MappedFile) -> None:
        self.header = header
        self.weights = {weight.name: weight for weight in header.weights}
        self._file = file

    @classmethod
    def open(cls, path: Path) -> PackedFile:
        """Raises ModelFileError for what is missing, truncated, damaged or something else."""
        file = MappedFile.open(path)
        header = _decode_header(file)
        for weight in header.weights:
            if weight.offset % PAGE_BYTES or not 0 <= weight.offset <= weight.offset + weight.nbytes <= file.size:
                raise ModelFileError(f"{path}: weight {weight.name!r} does not lie in its {file.size} bytes")
        return cls(header, file)

    def read(self, weight: PackedWeight) -> npt.NDArray[np.uint8]:
        return self._file.view(weight.offset, weight.nbytes)

    def release(self, weight: PackedWeight) -> None:
        """Its bytes will not be read again soon."""
        self._file.release(weight.offset, weight.nbytes)


def packed_path(directory: Path, model: Path, form: PackedForm) -> Path:
    """Where the model at a path lies packed in that form, if it does."""
    real = os.path.realpath(model)
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", os.path.basename(real))[:64]
    return directory / f"{readable}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}{FORM_SUFFIXES[form]}"


def packed_files(directory: Path, model: Path) -> tuple[Path, ...]:
    """Those of all forms that there are of the model at a path."""
    paths = (packed_path(directory, model, form) for form in FORM_SUFFIXES)
    return tuple(path for path in paths if path.exists())


def identify(source: ModelSource) -> tuple[SourceFile, ...]:
    """What tells a model's files from others, without reading all of them."""
    if isinstance(source, GGUFFile):
        return tuple(_identify(path) for path in source.paths)
    return tuple(_identify(path) for path in (source.path / CONFIG_FILE, *source.weights.paths))


def _identify(path: Path) -> SourceFile:
    real = os.path.realpath(path)
    with open(real, "rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.sha256(str(status.st_size).encode())
        for index in range(_SAMPLES):
            file.seek(max(0, status.st_size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return SourceFile(real, status.st_size, status.st_mtime_ns, digest.hexdigest())


def write_packed(path: Path, header: PackedHeader, contents: Sequence[npt.NDArray[np.uint8]]) -> None:
    """`header` as `place_weights` made it. From one moment to the next the file is there, whole and synced."""
    encoded = msgspec.msgpack.encode(header)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(new, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # tells `sweep` that somebody is at it
            file.write(_PREFIX.pack(MAGIC, len(encoded), _short_digest(encoded)) + encoded)
            for weight, content in zip(header.weights, contents, strict=True):
                file.seek(weight.offset)
                file.write(content.data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(new, path)
        _sync_directory(path.parent)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def place_weights(
    version: int, source: tuple[SourceFile, ...], weights: Sequence[tuple[str, str, tuple[int, ...], int, int]]
) -> PackedHeader:
    """Of (name, type, shape, nbytes, checksum): each weight on pages of its own, after the header."""

    def placed(start: int) -> PackedHeader:
        all, offset = [], start
        for name, type, shape, nbytes, checksum in weights:
            all.append(PackedWeight(name, type, shape, offset, nbytes, checksum))
            offset += _pages(nbytes)
        return PackedHeader(version, source, tuple(all))

    # Offsets take more bytes the larger they are: room for the header is measured with ones that are too large.
    largest = msgspec.msgpack.encode(placed(1 << 62))
    return placed(_pages(_PREFIX.size + len(largest)))


def sweep(directory: Path, room_bytes: int) -> None:
    """Removes what killed writers left, what was made from files that are gone or have changed, and the files not used
    for the longest until all take at most `room_bytes`."""
    for left in directory.glob(f"*{SUFFIX}.*.new"):
        with suppress(OSError), open(left, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
    used = 0
    for status, path in sorted(_files(directory), key=lambda one: -one[0].st_mtime_ns):
        used += status.st_size
        if used > room_bytes or not _is_of_its_source(path):
            path.unlink(missing_ok=True)
            used -= status.st_size


def _files(directory: Path) -> Iterator[tuple[os.stat_result, Path]]:
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            yield path.stat(), path


def _is_of_its_source(path: Path) -> bool:
    """As far as sizes and times tell."""
    try:
        source = PackedFile.open(path).header.source
        found = [os.stat(file.path) for file in source]
    except (ModelFileError, OSError):
        return False
    return all(
        (file.size, file.mtime_ns) == (status.st_size, status.st_mtime_ns)
        for file, status in zip(source, found, strict=True)
    )


def _decode_header(file: MappedFile) -> PackedHeader:
    path = file.path
    if file.size < _PREFIX.size:
        raise ModelFileError(f"{path}: is {file.size} bytes long, less than a packed file's beginning")
    magic, nbytes, digest = _PREFIX.unpack_from(file.map)
    if magic != MAGIC:
        raise ModelFileError(f"{path}: is not a packed file: it begins with {magic!r}")
    if nbytes > min(MAX_HEADER_BYTES, file.size - _PREFIX.size):
        raise ModelFileError(f"{path}: claims a header of {nbytes} bytes; it may be truncated")
    encoded = file.map[_PREFIX.size : _PREFIX.size + nbytes]
    if _short_digest(encoded) != digest:
        raise ModelFileError(f"{path}: its header is damaged")
    try:
        return msgspec.msgpack.decode(encoded, type=PackedHeader)
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"{path}: its header is of another version: {error}") from None


def _short_digest(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
