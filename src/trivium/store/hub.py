"""Models from the Hugging Face hub, through `huggingface_hub` where it is installed.

A reference is `org/name` (safetensors) or `org/name:pick`, where the pick names one GGUF file of the repository or its
quantization (`Q4_K_M`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from trivium.formats.huggingface import CONFIG_FILE, PICKLED_SUFFIXES
from trivium.formats.safetensors import INDEX_FILE, SINGLE_FILE
from trivium.store.disk import DISK_FULL, require_space
from trivium.store.model_files import MODULES_FILE, is_side_file
from trivium.store.names import ModelName
from trivium.store.origin import Fetched
from trivium.store.progress import ProgressCallback, watch_growth
from trivium.types.errors import ModelFileError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

HUB_PREFIX = "hub:"
MAX_SIDE_FILE_BYTES = 256 << 20

_REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<pick>[\w.-]+(?:/[\w.-]+)*))?", re.ASCII)
_SPLIT_PART = re.compile(r"-(?P<number>\d{5})-of-\d{5}\.gguf$")


class RemoteFile(Struct, frozen=True):
    path: str  # inside the repository
    size: int
    sha256: str | None  # known of large files only


class HubModel:
    changes = False

    def __init__(self, reference: str, endpoint: str | None = None) -> None:
        match = _REFERENCE.fullmatch(reference.removeprefix(HUB_PREFIX))
        if match is None:
            raise ModelFileError(f"{reference[:160]!r} does not name a hub model: write `org/name` or `org/name:pick`")
        self._repo = match["repo"]
        self._pick = match["pick"]
        self._endpoint = endpoint

    @property
    def name(self) -> ModelName:
        tag = f":{PurePosixPath(self._pick).name}" if self._pick else ""
        return ModelName.parse(self._repo + tag)

    @property
    def source(self) -> str:
        return f"{HUB_PREFIX}{self._repo}" + (f":{self._pick}" if self._pick else "")

    def fetch(self, directory: Path, progress: ProgressCallback) -> Fetched:
        api = self._api()
        revision, files = self._list(api)
        chosen = choose_files(self.source, files, self._pick)
        total = sum(file.size for file in chosen)
        require_space(directory, total, self.source)
        with _without_bars(), watch_growth(directory, self._repo, total, progress):
            for file in chosen:
                self._download(api, file.path, revision, directory)
        shutil.rmtree(directory / ".cache", ignore_errors=True)  # the library's notes on its downloads
        first = PurePosixPath(chosen[0].path)
        if first.suffix != ".gguf":
            return Fetched(directory, {file.path: file.sha256 for file in chosen if file.sha256})
        return Fetched(
            directory / first, {PurePosixPath(file.path).name: file.sha256 for file in chosen if file.sha256}
        )

    def _api(self) -> HfApi:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise ModelFileError(
                f"{self.source}: the hub needs the package huggingface_hub; `pip install trivium[hub]` brings it"
            ) from None
        return HfApi(endpoint=self._endpoint, library_name="trivium")

    def _list(self, api: HfApi) -> tuple[str | None, list[RemoteFile]]:
        try:
            info = api.model_info(self._repo, files_metadata=True)
        except Exception as error:
            self._unreachable(error)
        return info.sha, [
            RemoteFile(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else None) for one in info.siblings or ()
        ]

    def _download(self, api: HfApi, path: str, revision: str | None, directory: Path) -> None:
        try:
            api.hf_hub_download(self._repo, path, revision=revision, local_dir=directory)
        except Exception as error:
            self._unreachable(error)

    def _unreachable(self, error: Exception) -> NoReturn:
        """The library lets errors of several transports through, so every kind of exception is the hub's answer here."""
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise error
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelFileError(f"{self.source}: the hub did not give it: {said}") from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """The library draws progress bars of its own unless told not to; the pull's callback speaks for us."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    had_bars = not are_progress_bars_disabled()
    if had_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            enable_progress_bars()


def choose_files(source: str, files: Sequence[RemoteFile], pick: str | None) -> list[RemoteFile]:
    """The files of a repository that make up one model; its GGUF's first part, or its config.json, comes first."""
    files = [file for file in files if _is_plain(file.path)]
    ggufs = [file for file in files if file.path.endswith(".gguf") and "mmproj" not in file.path.lower()]
    if pick is not None:
        return _choose_gguf(source, ggufs, pick)
    top = {file.path: file for file in files if "/" not in file.path}
    weights = [file for file in top.values() if file.path.endswith(".safetensors")]
    if CONFIG_FILE in top and weights:
        # Some repositories hold the weights a second time, under another name (consolidated.safetensors).
        if SINGLE_FILE in top:
            weights = [top[SINGLE_FILE]]
        elif INDEX_FILE in top:
            weights = [file for file in weights if file.path.startswith("model")]
        near = [*top.values(), *(file for file in files if MODULES_FILE in top and _describes_a_module(file.path))]
        sides = [file for file in near if is_side_file(file.path) and file.size <= MAX_SIDE_FILE_BYTES]
        return sorted([*sides, *weights], key=lambda file: (file.path != CONFIG_FILE, file.path))
    firsts = _first_parts(ggufs)
    if len(firsts) == 1:
        return _with_parts(ggufs, firsts[0])
    if firsts:
        raise ModelFileError(f"{source}: holds {len(firsts)} GGUF models, pick one: {_some(source, firsts)}")
    if any(path.endswith(PICKLED_SUFFIXES) for path in top):
        raise ModelFileError(f"{source}: holds only pickled weights; only safetensors and GGUF are read")
    raise ModelFileError(f"{source}: holds no model: no {CONFIG_FILE} with safetensors, no GGUF file")


def _describes_a_module(path: str) -> bool:
    folder, _, name = path.partition("/")
    return bool(folder) and name == CONFIG_FILE


def _choose_gguf(source: str, ggufs: list[RemoteFile], pick: str) -> list[RemoteFile]:
    firsts = _first_parts(ggufs)
    if pick.lower().endswith(".gguf"):
        found = [file for file in firsts if file.path == pick or PurePosixPath(file.path).name == pick]
    else:
        tag = re.compile(rf"(?:^|[-._/]){re.escape(pick)}(?:[-._/]|$)", re.IGNORECASE)
        found = [file for file in firsts if tag.search(file.path)]
    if len(found) == 1:
        return _with_parts(ggufs, found[0])
    if not firsts:
        raise ModelFileError(f"{source}: the repository holds no GGUF files")
    repo = source.removesuffix(f":{pick}")
    if not found:
        raise ModelFileError(f"{source}: no GGUF file there is {pick}; there are {_some(repo, firsts)}")
    raise ModelFileError(f"{source}: {len(found)} GGUF files there are {pick}, pick one: {_some(repo, found)}")


def _first_parts(ggufs: list[RemoteFile]) -> list[RemoteFile]:
    """One file for each model: of a split one, the first part."""
    parts = {file.path: _SPLIT_PART.search(file.path) for file in ggufs}
    return [file for file in ggufs if (part := parts[file.path]) is None or int(part["number"]) == 1]


def _with_parts(ggufs: list[RemoteFile], first: RemoteFile) -> list[RemoteFile]:
    part = _SPLIT_PART.search(first.path)
    if part is None:
        return [first]
    stem, end = first.path[: part.start()], first.path[part.end("number") :]
    siblings = [file for file in ggufs if re.fullmatch(re.escape(stem) + r"-\d{5}" + re.escape(end), file.path)]
    return sorted(siblings, key=lambda file: file.path)


def _is_plain(path: str) -> bool:
    """A relative path that stays below where it is put."""
    return "\\" not in path and "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _some(repo: str, files: Sequence[RemoteFile], most: int = 8) -> str:
    shown = ", ".join(f"{repo}:{PurePosixPath(file.path).name}" for file in files[:most])
    return shown + (f" and {len(files) - most} more" if len(files) > most else "")
