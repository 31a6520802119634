"""The texts of a model's named special tokens (`bos_token`, `eos_token` …), which chat templates refer to."""

from __future__ import annotations

from typing import Any

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import ModelSource

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_GGUF_KEYS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # so spelt in the format
    "pad_token": "padding",
    "mask_token": "mask",
}


def read_special_tokens(source: ModelSource) -> dict[str, str]:
    """Only those that the model has."""
    return _of_gguf(source) if isinstance(source, GGUFFile) else _of_huggingface(source)


def _of_gguf(source: GGUFFile) -> dict[str, str]:
    tokens = source.get_list("tokenizer.ggml.tokens", str, [])
    ids = {name: source.get_int(f"tokenizer.ggml.{key}_token_id", -1) for name, key in _GGUF_KEYS.items()}
    return {name: tokens[id] for name, id in ids.items() if 0 <= id < len(tokens)}


def _of_huggingface(source: HFDirectory) -> dict[str, str]:
    entries = source.read_json(SPECIAL_TOKENS_MAP_FILE) | source.read_json(TOKENIZER_CONFIG_FILE)
    texts = {name: _text(entries.get(name)) for name in _NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _text(entry: Any) -> str | None:
    """A token is written as its text, or as an object that holds it with its properties."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None
