"""A model directory as Hugging Face lays it out: config.json, safetensors weights, tokenizer files."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from trivium.formats.json_file import read_json_object
from trivium.formats.safetensors import INDEX_FILE, SINGLE_FILE, SafetensorsFiles
from trivium.types.errors import ModelFileError

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
PICKLED_SUFFIXES = (".bin", ".pt", ".pth")


class HFDirectory:
    def __init__(self, path: Path, config: dict[str, Any], generation_config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config

    @classmethod
    def open(cls, path: str | Path) -> HFDirectory:
        path = Path(path)
        if not os.path.isdir(path):
            raise ModelFileError(
                f"{path}: is not a directory" if os.path.exists(path) else f"{path}: there is no such directory"
            )
        if not os.path.exists(path / CONFIG_FILE):
            ggufs = sorted(file.name for file in path.glob("*.gguf"))
            hint = f"; to run {ggufs[0]} in it, name that file" if ggufs else ""
            raise ModelFileError(f"{path}: is not a model directory, since it has no {CONFIG_FILE}{hint}")
        config = read_json_object(path / CONFIG_FILE)
        return cls(path, config, _read_optional(path / GENERATION_CONFIG_FILE))

    @cached_property
    def weights(self) -> SafetensorsFiles:
        """Opened when first asked for: many readers want only the configuration or the tokenizer."""
        if not any(os.path.exists(self.path / name) for name in (SINGLE_FILE, INDEX_FILE)):
            self._refuse_pickled_weights()
        return SafetensorsFiles.open(self.path)

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in a small JSON file of the directory (tokenizer_config.json …); empty if there is no such file."""
        return _read_optional(self.path / name)

    def close(self) -> None:
        if "weights" in self.__dict__:
            self.weights.close()

    def __enter__(self) -> HFDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_pickled_weights(self) -> None:
        if any(self.path.glob("*.safetensors")):
            return
        pickled = sorted(file.name for file in self.path.glob("*") if file.suffix in PICKLED_SUFFIXES)
        if pickled:
            raise ModelFileError(
                f"{self.path}: holds only pickled weights ({pickled[0]}); only safetensors are read,"
                " since unpickling a file can run code from it"
            )


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if os.path.exists(path) else {}
