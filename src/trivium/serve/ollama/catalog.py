"""All the models there are: those of the command line, those in the store, and the variants that clients made."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from trivium.records.variants import Variant
from trivium.serve.access.caller import asking
from trivium.serve.models.offers import Offer
from trivium.serve.ollama.answer import moment
from trivium.serve.ollama.names import tagged, untagged
from trivium.serve.ollama.protocol import Details, ListedModel
from trivium.serve.state import ServerState
from trivium.store.store import ModelStore
from trivium.store.summary import ModelSummary
from trivium.types.errors import ModelFileError


class Entry(Struct, frozen=True):
    model: Variant
    digest: str
    summary: ModelSummary | None  # None: its files cannot be read
    modified_at: str
    is_stored: bool = False

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def size(self) -> int:
        return 0 if self.summary is None else self.summary.size

    def listed(self) -> ListedModel:
        name = tagged(self.name)
        return ListedModel(name, name, self.modified_at, self.size, self.digest, self.details)

    @property
    def details(self) -> Details:
        summary = self.summary
        parent = self.model.base if self.model.base != self.name else ""
        if summary is None:
            return Details("", "", [], "", "", parent)
        family = summary.architecture or ""
        return Details(
            format="safetensors" if summary.format == "huggingface" else summary.format,
            family=family,
            families=[family],
            parameter_size=_in_words(summary.parameters),
            quantization_level=summary.quantization,
            parent_model=parent,
        )

    @property
    def model_info(self) -> dict[str, Any]:
        """By the names of GGUF's metadata."""
        summary = self.summary
        if summary is None:
            return {}
        family = summary.architecture or "unknown"
        return {
            "general.architecture": family,
            "general.parameter_count": summary.parameters,
            f"{family}.context_length": summary.context_length,
            f"{family}.embedding_length": summary.embedding_length,
        }


async def all_models(state: ServerState) -> list[Entry]:
    """Those that the caller may use; of these, those that stay first."""
    variants = await state.records.variants.list()
    staying = state.models.offers.staying
    entries = await asyncio.to_thread(_read_all, ModelStore(), staying, variants)
    return [entry for entry in entries if asking().may_use(entry.model.base)]


async def find_model(state: ServerState, name: str) -> Entry | None:
    return next((entry for entry in await all_models(state) if entry.name == untagged(name)), None)


def _read_all(store: ModelStore, staying: Sequence[Offer], variants: Sequence[Variant]) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for offer in staying:
        name = untagged(offer.name)
        entries[name] = _at_path(store, offer.path, name)
    for stored in store.list():
        hashes = [file.sha256 for file in stored.manifest.files]
        digest = hashes[0] if len(hashes) == 1 else _sha256("".join(hashes))
        created = moment(datetime.fromisoformat(stored.manifest.created))
        name = untagged(stored.name)
        entries[name] = Entry(Variant(name, name), digest, _summary(store, stored.name), created, is_stored=True)
    for variant in variants:
        base = entries.get(variant.base)
        digest = _sha256(repr(variant))
        entries[variant.name] = Entry(variant, digest, base.summary if base else None, variant.modified_at)
    return list(entries.values())


def _at_path(store: ModelStore, path: Path, name: str) -> Entry:
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.exists() else datetime.now(UTC)
    summary = _summary(store, str(path))
    size = 0 if summary is None else summary.size
    return Entry(Variant(name, name), _sha256(f"{name} {size} {changed}"), summary, moment(changed))


def _summary(store: ModelStore, reference: str) -> ModelSummary | None:
    try:
        return store.show(reference)
    except ModelFileError:
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _in_words(parameters: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.2f}".rstrip("0").rstrip(".") + name
    return str(parameters)
