"""What trials of kernels have found, kept on disk for later starts of the same build on the same machine."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from trivium.engine.trial import TrialRequest, Verdict
from trivium.kernels.native import load_extension, usable_instruction_sets
from trivium.platform.requirements import core_version

log = logging.getLogger(__name__)

FOLDER = "ladder"


def build_of_native(machine: str) -> str:
    """Changes with the machine, with the native kernels, and with what they are compared with."""
    path = load_extension().__file__
    assert path is not None
    with open(path, "rb") as file:
        code = hashlib.file_digest(file, "blake2b").hexdigest()
    return "\n".join((machine, core_version(), torch.__version__, *usable_instruction_sets(), code))


class KeptVerdicts:
    def __init__(self, root: Path, build: str) -> None:
        self._folder = root / FOLDER
        self._build = build

    def of(self, request: TrialRequest, attempt: Callable[[TrialRequest], Sequence[Verdict]]) -> Sequence[Verdict]:
        """Those of an earlier start, or else of `attempt`. What may be otherwise next time (a hang, a slow op on a busy
        machine) is not kept."""
        path = self._folder / f"{self._key(request)}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=tuple[Verdict, ...])
        except (OSError, msgspec.DecodeError):
            verdicts = tuple(attempt(request))
        if all(verdict.lasts for verdict in verdicts):
            self._keep(path, verdicts)
        return verdicts

    def _key(self, request: TrialRequest) -> str:
        return hashlib.blake2b(self._build.encode() + msgspec.json.encode(request), digest_size=16).hexdigest()

    def _keep(self, path: Path, verdicts: Sequence[Verdict]) -> None:
        """Whole or not at all; where nothing can be written, the next start tries again."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, new = tempfile.mkstemp(dir=self._folder)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(verdicts))
            os.replace(new, path)
        except OSError as error:
            log.warning("what the kernels' trial found is not kept in %s: %s", self._folder, error)
