"""A model that is on this disk already: referred to where it is, or copied."""

from __future__ import annotations

import re
from pathlib import Path

from trivium.formats.source import open_source
from trivium.store.disk import copy_stream, require_space
from trivium.store.model_files import base_of, files_of
from trivium.store.names import ModelName
from trivium.store.origin import Fetched
from trivium.store.progress import ByteCount, ProgressCallback, PullStage

_SPLIT_SUFFIX = re.compile(r"-00001-of-\d{5}$")


class LocalModel:
    changes = True

    def __init__(self, path: Path, copy: bool) -> None:
        self._path = path.expanduser().absolute()
        self._copy = copy

    @property
    def name(self) -> ModelName:
        path = self._path
        return ModelName.suggest(path.name if path.is_dir() else _SPLIT_SUFFIX.sub("", path.stem))

    @property
    def source(self) -> str:
        return str(self._path)

    def fetch(self, directory: Path, progress: ProgressCallback) -> Fetched:
        if not self._copy:
            return Fetched(self._path)
        with open_source(self._path) as source:
            files = files_of(source)
        total = sum(file.stat().st_size for file in files)
        require_space(directory, total, f"a copy of {self._path}")
        count = ByteCount(PullStage.COPYING, total, progress)
        sha256 = {}
        for file in files:
            relative = file.relative_to(base_of(self._path))
            (directory / relative).parent.mkdir(exist_ok=True)
            with open(file, "rb") as stream:
                sha256[str(relative)] = copy_stream(stream, directory / relative, count.of(file.name))
        return Fetched(directory if self._path.is_dir() else directory / self._path.name, sha256)
