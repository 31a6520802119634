"""Writing to disk so that what is there is whole: synced, atomic, locked; and failures told in a sentence."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trivium.faults import fault_point
from trivium.types.errors import ModelFileError, StoreDiskError

CHUNK_BYTES = 1 << 20

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def copy_stream(source: IO[bytes], target: Path, on_bytes: Callable[[int], None]) -> str:
    """Writes a new file, synced to the disk; returns its sha256."""
    digest = hashlib.sha256()
    fault_point("store.write_file")
    with open(target, "xb") as out:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
            on_bytes(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def sha256_of(path: Path, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    fault_point("store.read_file")
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def sync_file(path: Path) -> None:
    """Also of a directory: makes the names in it last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    for parent, _, names in os.walk(directory):
        for name in names:
            sync_file(Path(parent, name))
        sync_file(Path(parent))


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds a lock that other processes and threads respect and that a killed process gives back."""
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_space(directory: Path, nbytes: int, what: str) -> None:
    free = shutil.disk_usage(directory).free
    if free < nbytes:
        raise ModelFileError(
            f"{what} needs {nbytes:,} bytes of disk, but only {free:,} are free where models are stored"
        )


@contextmanager
def disk_errors_told(directory: Path, what: str) -> Iterator[None]:
    """An error of the operating system becomes a sentence: StoreDiskError."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StoreDiskError(f"{what}: the disk is full: {error.strerror} ({_free(directory)})") from error
        place = f": {error.filename}" if error.filename else ""
        raise StoreDiskError(f"{what}: {error.strerror or error}{place}") from error


def _free(directory: Path) -> str:
    try:
        return f"{shutil.disk_usage(directory).free:,} bytes are free in {directory}"
    except OSError:
        return f"in {directory}"
