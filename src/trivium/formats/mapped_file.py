"""A file mapped into memory, read-only."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trivium.types.errors import ModelFileError


class MappedFile:
    """A regular file whose size was taken when it was opened; views of it live as long as someone holds them."""

    def __init__(self, path: Path, map: mmap.mmap) -> None:
        self.path = path
        self.map = map
        self.size = len(map)

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        try:
            # O_NONBLOCK: a named pipe must be refused below, not waited for.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise ModelFileError(f"{path}: there is no such file") from None
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: cannot be opened: {reason(error)}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: is not a regular file")
            if status.st_size == 0:
                raise ModelFileError(f"{path}: is empty")
            return cls(path, mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be mapped: {reason(error)}") from None
        finally:
            os.close(descriptor)

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes of the file without a copy; the caller has checked the bounds, numpy checks them again."""
        return np.frombuffer(self.map, dtype=np.uint8, count=nbytes, offset=offset)

    def release(self, offset: int, nbytes: int) -> None:
        """The bytes will not be read again soon: their pages need not stay in memory for us."""
        if hasattr(mmap, "MADV_DONTNEED"):
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.map.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)

    def close(self) -> None:
        # Arrays may still look into the mapping; then it goes when the last of them does.
        with suppress(BufferError):
            self.map.close()


def reason(error: Exception) -> str:
    """The operating system's own words, without the path that our sentence already names."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
