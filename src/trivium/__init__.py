"""Trivium: an inference engine for large models. `from trivium import LLM, SamplingParams`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.llm.async_llm import AsyncLLM
    from trivium.llm.llm import LLM
    from trivium.llm.params import BeamSearchParams, SamplingParams
    from trivium.llm.structured import StructuredOutputsParams

__all__ = ["LLM", "AsyncLLM", "BeamSearchParams", "SamplingParams", "StructuredOutputsParams"]

_HOMES = {
    "LLM": "trivium.llm.llm",
    "AsyncLLM": "trivium.llm.async_llm",
    "SamplingParams": "trivium.llm.params",
    "BeamSearchParams": "trivium.llm.params",
    "StructuredOutputsParams": "trivium.llm.structured",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used, so that `import trivium` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trivium' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
