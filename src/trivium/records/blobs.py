"""The bytes of files: written beside their place and moved there whole, so that what has a name is complete."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from trivium.faults import fault_point
from trivium.types.errors import StorageError

# What has no record and is older is the remains of a process that was killed.
ORPHAN_SECONDS = 24 * 3600


class Blob(Struct, frozen=True):
    """What is known of bytes that are on the disk."""

    size: int
    sha256: str


class Blobs:
    def __init__(self, directory: Path) -> None:
        self._kept = directory / "files"
        self._incoming = directory / "incoming"
        for folder in (self._kept, self._incoming):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, blob_id: str) -> Path:
        return self._kept / blob_id

    def incoming(self) -> IncomingBlob:
        return IncomingBlob(self._incoming / secrets.token_hex(16))

    def publish(self, incoming: IncomingBlob, blob_id: str) -> Blob:
        """Gives the bytes their name, for good."""
        blob = incoming.finish()
        with disk_failures_told():
            fault_point("blobs.publish")
            os.replace(incoming.path, self.path(blob_id))
            _sync(self._kept)
        return blob

    def link(self, blob_id: str, name: str) -> None:
        """A second name for the same bytes, which outlives the first."""
        target = self.path(name)
        try:
            os.link(self.path(blob_id), target)
        except FileExistsError:
            return
        except PermissionError:  # a file system without links
            shutil.copyfile(self.path(blob_id), target)
        except OSError as error:
            raise StorageError(f"the bytes of {blob_id} cannot be read: {error.strerror}") from error
        _sync(self._kept)

    def remove(self, blob_id: str) -> None:
        self.path(blob_id).unlink(missing_ok=True)

    def remove_orphans(self, known: set[str]) -> None:
        """Old bytes that no record names. Young ones may be another process's, whose record is about to be written."""
        oldest = time.time() - ORPHAN_SECONDS
        for folder in (self._kept, self._incoming):
            for path in folder.iterdir():
                if path.name not in known and path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)


class IncomingBlob:
    """Bytes on their way to the disk. `discard` is safe at any time, also after they were published."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._digest = hashlib.sha256()
        with disk_failures_told():
            fault_point("blobs.open")
            self._file = open(path, "xb")  # noqa: SIM115

    def write(self, data: bytes) -> None:
        with disk_failures_told():
            fault_point("blobs.write")
            self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Of what was written so far."""
        return self._digest.hexdigest()

    def finish(self) -> Blob:
        with disk_failures_told():
            fault_point("blobs.sync")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return Blob(self.size, self.sha256)

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def disk_failures_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the file could not be kept: {error.strerror}") from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
