"""Who does a piece of work: a lock in the file system, which a killed process gives back."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Claims:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def take(self, name: str) -> Claim | None:
        """None while another holds it, in this process or any other."""
        path = self._directory / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return Claim(path, descriptor)


class Claim:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def retire(self) -> None:
        """The work is done, and nobody will ask for it again."""
        self._path.unlink(missing_ok=True)

    def give_back(self) -> None:
        os.close(self._descriptor)
