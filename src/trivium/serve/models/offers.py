"""The models that can be served: those of the command line, which stay, and those in the store, which come and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trivium.config.options import EngineOptions
from trivium.serve.models.sizes import PROCESS_BYTES, kv_bytes_for
from trivium.store.names import ModelName
from trivium.store.store import ModelStore
from trivium.types.errors import ModelFileError, ModelLoadError

FIRST_PART = "-00001-of-"  # in the name of a GGUF file whose model is split over several
LATEST = ":latest"  # the tag that Ollama's clients add to names without one


class Offer(Struct, frozen=True):
    name: str  # what clients call it
    path: Path
    options: EngineOptions
    weight_bytes: int
    kv_bytes: int
    context_length: int | None  # tokens, that the model was made for
    stays: bool  # from the server's start to its end

    @property
    def need(self) -> int:
        """Bytes of memory while it is loaded."""
        return self.weight_bytes + self.kv_bytes + PROCESS_BYTES


class Offers:
    """Reads files: call it from a thread."""

    def __init__(self, staying: Sequence[Offer], options: EngineOptions, store: ModelStore) -> None:
        """`options` are for models from the store; the first of `staying` is the default one."""
        self.staying = staying
        self._options = options
        self._store = store

    @property
    def default(self) -> Offer:
        return self.staying[0]

    def staying_called(self, name: str) -> Offer | None:
        wanted = name.removesuffix(LATEST)
        return next((offer for offer in self.staying if offer.name.removesuffix(LATEST) == wanted), None)

    def stored_called(self, name: str) -> Offer | None:
        """Only names are looked up, never paths. Raises ModelLoadError where there is one of that name, but damaged."""
        try:
            wanted = ModelName.parse(name.removesuffix(LATEST)).text
        except ModelFileError:
            return None
        if not self._store.has(wanted):
            return None
        try:
            return self._stored(wanted)
        except ModelFileError as error:
            raise ModelLoadError(f"the model {wanted!r} could not be loaded: {error}") from None

    def stored(self) -> list[Offer]:
        """Those that are damaged are left out."""
        offers = []
        for stored in self._store.list():
            if self.staying_called(stored.name) is None:
                with suppress(ModelFileError):
                    offers.append(self._stored(stored.name))
        return offers

    def _stored(self, name: str) -> Offer:
        summary = self._store.show(name)
        longest, most = summary.context_length, self._options.max_model_len
        kv_bytes = self._options.kv_cache_bytes or kv_bytes_for(summary.size)
        options = replace(
            self._options,
            model=str(summary.path),
            served_model_name=name,
            kv_cache_bytes=kv_bytes,
            max_model_len=most if longest is None or most is None else min(most, longest),
        )
        return Offer(name, summary.path, options, summary.size, kv_bytes, longest, stays=False)


def offer_that_stays(path: Path, options: EngineOptions) -> Offer:
    """`options` name it. The engine chooses the size of its KV cache itself, where they do not say it."""
    weight_bytes = _weight_bytes(path)
    kv_bytes = options.kv_cache_bytes or kv_bytes_for(weight_bytes)
    assert options.served_model_name is not None
    return Offer(options.served_model_name, path, options, weight_bytes, kv_bytes, None, stays=True)


def _weight_bytes(path: Path) -> int:
    """By the files' sizes alone: nothing slow may stand between a command and the start of its engine."""
    stem, is_split, _ = path.name.partition(FIRST_PART)
    if path.is_dir():
        files: Iterable[Path] = path.glob("*.safetensors")
    else:
        files = path.parent.glob(f"{escape(stem)}-*.gguf") if is_split else [path]
    return sum(file.stat().st_size for file in files)
