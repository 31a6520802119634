"""Finds the family of a model and reads its spec. Imports no torch, so that facts can be had without it."""

from __future__ import annotations

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import ModelSource
from trivium.models.families.gemma3 import GEMMA3
from trivium.models.families.llama import LLAMA
from trivium.models.families.mistral import MISTRAL
from trivium.models.families.mixtral import MIXTRAL
from trivium.models.families.qwen2 import QWEN2
from trivium.models.families.qwen3 import QWEN3
from trivium.models.families.qwen3_moe import QWEN3_MOE
from trivium.models.family import Family
from trivium.models.from_huggingface import HFConfig
from trivium.models.spec import ModelSpec
from trivium.types.errors import UnsupportedModelError

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3, MIXTRAL, QWEN3_MOE)


def read_spec(source: ModelSource) -> ModelSpec:
    """The model's facts; no weights are read."""
    family = find_family(source)
    if isinstance(source, GGUFFile):
        return family.gguf_spec(source)
    return family.hf_spec(HFConfig(source.config, generation=source.generation_config))


def find_family(source: ModelSource) -> Family:
    return _find_by_metadata(source) if isinstance(source, GGUFFile) else _find_by_config(source)


def _find_by_config(source: HFDirectory) -> Family:
    names = source.config.get("architectures")
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for family in FAMILIES:
        if any(name in family.hf_architectures for name in names):
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.hf_architectures)
    found = f"has the architecture {', '.join(names)}" if names else "names no architecture in its config.json"
    raise UnsupportedModelError(f"{source.path}: {found}; we run {supported}")


def _find_by_metadata(source: GGUFFile) -> Family:
    architecture = source.architecture
    sparse = source.get_int(f"{architecture}.expert_count", 0) > 0
    for family in FAMILIES:
        if architecture in family.gguf_architectures and sparse == family.sparse:
            return family
    supported = ", ".join(dict.fromkeys(name for family in FAMILIES for name in family.gguf_architectures))
    kind = " with experts" if sparse else ""
    raise UnsupportedModelError(
        f"{source.path}: has the architecture {architecture!r}{kind}; from GGUF files we run {supported}"
    )
