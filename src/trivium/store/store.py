"""The local model store.

<root>/models/<name>/manifest.json    one directory for each model; what is here is whole
<root>/models/<name>/files/…          the files, where the store owns them
<root>/staging/<name>-…/              a pull in progress, or the remains of one that was killed
<root>/locks/<name>.lock              held while a model comes or goes
<root>/packed/<file>.packed           weights as the kernels lay them, made by the engine; goes with its model
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from trivium.formats.home import default_root
from trivium.formats.huggingface import CONFIG_FILE
from trivium.formats.packed_file import FOLDER as PACKED_FOLDER
from trivium.formats.packed_file import packed_files
from trivium.formats.source import open_source
from trivium.store.disk import disk_errors_told, locked, sync_file, sync_tree
from trivium.store.hub import HUB_PREFIX, HubModel
from trivium.store.local import LocalModel
from trivium.store.manifest import MANIFEST_FILE, Manifest, StoredModel, read_manifest, write_manifest
from trivium.store.model_files import FileRecord, base_of, files_of, record_files
from trivium.store.names import ModelName
from trivium.store.origin import Fetched, Origin
from trivium.store.packaged import PACKAGED_MODELS, PackagedModel
from trivium.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from trivium.store.summary import ModelSummary, format_of, summarize
from trivium.types.errors import ModelFileError

FILES = "files"

log = logging.getLogger(__name__)


class ModelStore:
    def __init__(
        self,
        root: str | Path | None = None,
        packages: Mapping[str, PackagedModel] = PACKAGED_MODELS,
        hub_endpoint: str | None = None,
    ) -> None:
        self.root = default_root() if root is None else Path(root)
        self._packages = packages
        self._hub_endpoint = hub_endpoint

    def resolve(self, reference: str, progress: ProgressCallback = ignore_progress) -> Path:
        """What `open_source` opens for a reference: a path, a stored name, or a packaged model, pulled if need be."""
        if _is_model_path(reference):
            return Path(reference).expanduser()
        if _is_name(reference) and (stored := read_manifest(self._directory(ModelName.parse(reference)))):
            problem = stored.problem()
            if problem is None:
                return stored.path
            if reference not in self._packages:
                raise ModelFileError(
                    f"{reference}: {problem}; pull it again from {stored.manifest.source},"
                    f" or remove it with `trivium rm {reference}`"
                )
        if reference in self._packages:
            return self.pull(reference, progress=progress).path
        raise ModelFileError(self._not_found(reference))

    def is_path(self, reference: str) -> bool:
        """Whether a reference is a model's path on this disk, and no name."""
        return _is_model_path(reference)

    def pull(
        self,
        reference: str,
        *,
        name: str | None = None,
        copy: bool = False,
        progress: ProgressCallback = ignore_progress,
    ) -> StoredModel:
        """Brings a model into the store: a path, a packaged model's name, `org/name` or `org/name:pick` of the hub.

        Files on this disk are referred to where they are, unless `copy` says otherwise.
        """
        origin = self._origin(reference, copy)
        stored_as = origin.name if name is None else ModelName.parse(name)
        if stored_as.text in self._packages and not isinstance(origin, PackagedModel):
            raise ModelFileError(f"{stored_as.text} is the name of a packaged model; give {reference} another")
        with self._changing(stored_as, progress):
            stored = self._stored_from(origin, stored_as)
            if stored is not None and not origin.changes and stored.problem() is None:
                return stored
            with self._staged(stored_as) as stage:
                files = stage / FILES
                files.mkdir()
                fetched = origin.fetch(files, progress)
                write_manifest(stage, _describe(stored_as, origin, fetched, stage, progress))
                sync_tree(stage)
                self._publish(stage, stored_as)
        return self.get(stored_as.text)

    def has(self, name: str) -> bool:
        """Whether a model of that name is stored, sound or damaged."""
        return (self._directory(ModelName.parse(name)) / MANIFEST_FILE).exists()

    def get(self, name: str) -> StoredModel:
        stored = read_manifest(self._directory(ModelName.parse(name)))
        if stored is None:
            raise ModelFileError(self._not_found(name))
        return stored

    def list(self) -> Sequence[StoredModel]:
        """All stored models, by name. A damaged entry is logged and left out; `rm` removes it."""
        found = []
        for directory in sorted((self.root / "models").glob("*/")):
            try:
                stored = read_manifest(directory)
            except ModelFileError as error:
                log.warning("%s", error)
                continue
            if stored is not None:
                found.append(stored)
        return found

    def show(self, reference: str) -> ModelSummary:
        """Of a stored model or of one at a path; pulls nothing."""
        if _is_model_path(reference):
            return self._summary(Path(reference).expanduser())
        stored = self.get(reference)
        summary = self._summary(stored.path)
        return replace(summary, name=stored.name, source=stored.manifest.source, created=stored.manifest.created)

    def verify(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """Reads every byte of a stored model; an error names what is not as it was when it was pulled."""
        stored = self.get(name)
        if problem := stored.problem():
            raise ModelFileError(f"{name}: {problem}")
        base = base_of(stored.path)
        with disk_errors_told(self.root, name):
            found = record_files(base, [base / file.path for file in stored.manifest.files], progress)
        _check_sha256(name, found, {file.path: file.sha256 for file in stored.manifest.files})
        return stored

    def rm(self, name: str) -> None:
        """Forgets a model, and deletes its files if they are the store's own."""
        parsed = ModelName.parse(name)
        if not self._directory(parsed).exists():
            raise ModelFileError(self._not_found(name))
        with self._changing(parsed, ignore_progress), self._staged(parsed) as stage:
            self._forget_packed(parsed)
            if self._directory(parsed).exists():
                os.rename(self._directory(parsed), stage / "removed")

    def _summary(self, path: Path) -> ModelSummary:
        with open_source(path) as source:
            summary = summarize(source)
        return replace(summary, packed=packed_files(self.root / PACKED_FOLDER, path))

    def _forget_packed(self, name: ModelName) -> None:
        try:
            stored = read_manifest(self._directory(name))
        except ModelFileError:
            return  # damaged: nobody knows where its files were; what was packed of them is swept in time
        if stored is not None:
            for path in packed_files(self.root / PACKED_FOLDER, stored.path):
                path.unlink(missing_ok=True)

    def _origin(self, reference: str, copy: bool) -> Origin:
        if reference.startswith(HUB_PREFIX):
            return HubModel(reference, self._hub_endpoint)
        if _is_model_path(reference):
            return LocalModel(Path(reference), copy)
        if reference in self._packages:
            return self._packages[reference]
        if _looks_like_a_path(reference) or "/" not in reference:
            raise ModelFileError(
                f"{reference}: there is no such model directory or .gguf file, and no packaged model of that name"
                f" (there is {', '.join(self._packages)}); a hub model is written org/name"
            )
        return HubModel(reference, self._hub_endpoint)

    def _stored_from(self, origin: Origin, name: ModelName) -> StoredModel | None:
        stored = read_manifest(self._directory(name))
        if stored is not None and stored.manifest.source != origin.source:
            raise ModelFileError(
                f"{name.text} is stored already, from {stored.manifest.source}; give {origin.source} another name,"
                f" or remove the stored one with `trivium rm {name.text}`"
            )
        return stored

    def _directory(self, name: ModelName) -> Path:
        return self.root / "models" / name.directory

    @contextmanager
    def _changing(self, name: ModelName, progress: ProgressCallback) -> Iterator[None]:
        """One process at a time adds or removes a model; what an earlier one left unfinished is swept."""
        with disk_errors_told(self.root, name.text):
            for folder in ("models", "staging", "locks"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            lock = self.root / "locks" / f"{name.directory}.lock"
            with locked(lock, on_wait=lambda: progress(PullProgress(PullStage.WAITING, name.text))):
                for remains in (self.root / "staging").glob(f"{name.directory}+*"):
                    shutil.rmtree(remains)
                yield

    @contextmanager
    def _staged(self, name: ModelName) -> Iterator[Path]:
        # `+` is in no name, so no other model's staging begins with the same text.
        stage = Path(tempfile.mkdtemp(prefix=f"{name.directory}+", dir=self.root / "staging"))
        try:
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def _publish(self, stage: Path, name: ModelName) -> None:
        """The staged model takes its place; from one moment to the next it is there, whole."""
        target = self._directory(name)
        with self._staged(name) as trash:
            if target.exists():
                os.rename(target, trash / "replaced")
            os.rename(stage, target)
            sync_file(target.parent)

    def _not_found(self, reference: str) -> str:
        names = [stored.name for stored in self.list()]
        stored = f"stored are {', '.join(names)}" if names else "nothing is stored yet"
        return (
            f"{reference}: there is no such model: it is neither a model directory nor a .gguf file, and {stored};"
            " `trivium pull` takes a path, `org/name` of the hub, or " + ", ".join(self._packages)
        )


def _describe(name: ModelName, origin: Origin, fetched: Fetched, stage: Path, progress: ProgressCallback) -> Manifest:
    with open_source(fetched.path) as source:
        format = format_of(source)
        paths = files_of(source)
    files = record_files(base_of(fetched.path), paths, progress)
    _check_sha256(origin.source, files, fetched.sha256)
    owned = fetched.path.is_relative_to(stage)
    return Manifest(
        name=name.text,
        source=origin.source,
        format=format,
        path=str(fetched.path.relative_to(stage) if owned else fetched.path),
        owned=owned,
        size=sum(file.size for file in files),
        files=files,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _check_sha256(what: str, files: Sequence[FileRecord], promised: Mapping[str, str]) -> None:
    for file in files:
        wanted = promised.get(file.path, file.sha256)
        if file.sha256 != wanted:
            raise ModelFileError(f"{what}: {file.path} has the sha256 {file.sha256}, not {wanted}")


def _is_model_path(reference: str) -> bool:
    """A directory or .gguf file on this disk. A bare word is a directory only if it holds a model: `smollm2` typed in a
    folder that happens to have one of that name still means the stored model."""
    path = os.path.expanduser(reference)
    if os.path.isdir(path):
        return _looks_like_a_path(reference) or os.path.exists(os.path.join(path, CONFIG_FILE))
    return path.lower().endswith(".gguf") and os.path.exists(path)


def _looks_like_a_path(reference: str) -> bool:
    return reference.startswith(("/", "./", "../", "~")) or reference in (".", "..")


def _is_name(reference: str) -> bool:
    try:
        ModelName.parse(reference)
    except ModelFileError:
        return False
    return True
