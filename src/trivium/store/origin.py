"""What every place a model can be pulled from has in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from trivium.store.names import ModelName
from trivium.store.progress import ProgressCallback


class Fetched(Struct, frozen=True):
    path: Path  # of the model; inside the directory that was given if the files are the store's own
    sha256: Mapping[str, str] = {}  # what the origin promises of files, by path relative to the model's directory


class Origin(Protocol):
    @property
    def name(self) -> ModelName:
        """What to call the model where the user does not say."""

    @property
    def source(self) -> str:
        """One line that names the origin; two origins with the same line are the same."""

    @property
    def changes(self) -> bool:
        """Whether the same origin may give other files tomorrow; if not, a stored model is never fetched again."""

    def fetch(self, directory: Path, progress: ProgressCallback) -> Fetched:
        """Puts files into `directory`, which is empty and on the store's disk, or refers to files elsewhere."""
