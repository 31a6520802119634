"""Ollama's options as the fields of a chat request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("trivium.serve")

FIELD_OF_OPTION = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "num_predict": "max_tokens",
}

# They say how to run a model, and that was decided when the server started.
ABOUT_RUNNING = frozenset(
    {
        "num_ctx",
        "num_keep",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "numa",
        "low_vram",
        "use_mmap",
        "use_mlock",
        "vocab_only",
        "f16_kv",
        "logits_all",
        "embedding_only",
    }
)


def sampling_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in options.items():
        field = FIELD_OF_OPTION.get(name)
        if field is None:
            if name not in ABOUT_RUNNING:
                logger.warning("the option %r is not known here and was ignored", name[:80])
        elif value is not None:
            fields[field] = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(fields.get("max_tokens"), int) and fields["max_tokens"] <= 0:
        del fields["max_tokens"]  # as many as it takes
    if fields.get("stop") == []:
        del fields["stop"]
    return fields
