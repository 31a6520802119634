"""What the small files of sentence-transformers say beside config.json: how states become one vector, and text lengths."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from trivium.formats.huggingface import HFDirectory
from trivium.formats.json_file import read_json_list
from trivium.models.encoder_spec import Pooling
from trivium.types.errors import ModelFileError, UnsupportedModelError

MODULES_FILE = "modules.json"
LENGTH_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")

POOLING_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
# Lengths of vectors are made 1 by whoever asks for them.
MODULES_WITHOUT_WEIGHTS = ("Transformer", "Pooling", "Normalize")


class SentenceFiles(Struct, frozen=True):
    pooling: Pooling | None = None  # None: not told
    max_length: int | None = None  # tokens that texts were cut to in training


def read_sentence_files(source: HFDirectory) -> SentenceFiles:
    pooling: Pooling | None = None
    for module in _modules(source):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in MODULES_WITHOUT_WEIGHTS:
            raise UnsupportedModelError(
                f"{source.path}: {MODULES_FILE} has a {kind!r}, and we run {', '.join(MODULES_WITHOUT_WEIGHTS)}"
            )
        if kind == "Pooling":
            pooling = _pooling(source, str(module.get("path", "")))
    return SentenceFiles(pooling, _max_length(source))


def _modules(source: HFDirectory) -> list[dict[str, Any]]:
    path = source.path / MODULES_FILE
    if not path.exists():
        return []
    modules = read_json_list(path)
    if not all(isinstance(module, dict) for module in modules):
        raise ModelFileError(f"{path}: must hold a list of objects")
    return modules


def _pooling(source: HFDirectory, folder: str) -> Pooling:
    if not folder or folder.startswith(("/", ".")) or "/" in folder:
        raise ModelFileError(f"{source.path}: {MODULES_FILE} has a pooling in {folder!r}, which is no folder beside it")
    config = source.read_json(f"{folder}/config.json")
    asked = [mode for mode, value in config.items() if mode.startswith("pooling_mode_") and value is True]
    unknown = [mode for mode in asked if mode not in POOLING_MODES]
    if unknown or len(asked) != 1:
        raise UnsupportedModelError(
            f"{source.path}: {folder}/config.json asks for {', '.join(asked) or 'no pooling'}; we do one of"
            f" {', '.join(POOLING_MODES)}"
        )
    return POOLING_MODES[asked[0]]


def _max_length(source: HFDirectory) -> int | None:
    for name in LENGTH_FILES:
        length = source.read_json(name).get("max_seq_length")
        if type(length) is int and length > 0:
            return length
    return None
