"""Weights packed by an earlier start are taken from disk; what had to be packed now is written there for the next."""

from __future__ import annotations

import logging
import math
import os
import shutil
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from trivium.faults import fault_point
from trivium.formats.mapped_file import reason
from trivium.formats.packed_file import (
    PackedFile,
    PackedForm,
    identify,
    packed_path,
    place_weights,
    sweep,
    write_packed,
)
from trivium.formats.source import ModelSource
from trivium.kernels.ops import Packing
from trivium.kernels.weights import PackedTensor
from trivium.models.checkpoint import as_torch

log = logging.getLogger(__name__)

# Smaller models are packed in less time than a file is worth.
FEWEST_BYTES = 16 << 20
# A disk is never filled by more than half of what is free.
FREE_FOR_EACH_BYTE = 2


class PackedWeights(Protocol):
    """What a loader asks, weight by weight, before it packs one."""

    @property
    def state(self) -> str:
        """For the start report: where packed weights came from and are kept; empty if nowhere."""

    def has(self, name: str) -> bool:
        """Whether it lies packed on disk, as far as can be told before it is read."""

    def room_wanted(self, nbytes: int) -> int:
        """Bytes that must be free on disk so that `nbytes` of weights, which are not there yet, are kept."""

    def get(self, name: str, types: Collection[str], shape: tuple[int, ...]) -> PackedTensor | None:
        """If it lies there in one of those types."""

    def put(self, name: str, packed: PackedTensor) -> None: ...

    def finish(self) -> None:
        """All weights were asked for."""


class NoPackedWeights:
    """Every weight is packed anew, and none kept."""

    state = ""

    def has(self, name: str) -> bool:
        return False

    def room_wanted(self, nbytes: int) -> int:
        return 0

    def get(self, name: str, types: Collection[str], shape: tuple[int, ...]) -> PackedTensor | None:
        return None

    def put(self, name: str, packed: PackedTensor) -> None:
        pass

    def finish(self) -> None:
        pass


class PackedOnDisk:
    """The packed file of one model in one form."""

    def __init__(
        self, directory: Path, room_bytes: int, source: ModelSource, packing: Packing, form: PackedForm
    ) -> None:
        self._directory = directory
        self._room_bytes = room_bytes
        self._packing = packing
        self._path = packed_path(directory, source.path, form)
        self._source = identify(source)
        self._weights: dict[str, PackedTensor] = {}
        self._num_packed = 0
        self._writer: threading.Thread | None = None
        self._why_packed = "no packed file yet"
        self._file: PackedFile | None = None
        self._open()
        self.state = ""

    def has(self, name: str) -> bool:
        return self._file is not None and name in self._file.weights

    def room_wanted(self, nbytes: int) -> int:
        is_written = self._file is None and FEWEST_BYTES <= nbytes <= self._room_bytes
        return nbytes * FREE_FOR_EACH_BYTE if is_written else 0

    def get(self, name: str, types: Collection[str], shape: tuple[int, ...]) -> PackedTensor | None:
        """The weight, if the file has it whole and it is of such a type and that shape. What is wrong ends our trust in all of it."""
        if self._file is None:
            return None
        weight = self._file.weights.get(name)
        if weight is None or weight.type not in types or weight.shape != shape:
            self._distrust("the packed file is of another model or form")
            return None
        data_shape = self._packing.data_shape(weight.type, shape)
        if weight.nbytes != math.prod(data_shape):
            self._distrust("the packed file is of another model or form")
            return None
        data = self._packing.memory.hold(as_torch(self._file.read(weight)))
        if self._packing.memory.are_offered:
            self._file.release(weight)
        if self._packing.checksum(data) != weight.checksum:
            self._distrust(f"{self._path} was damaged")
            return None
        packed = PackedTensor(weight.type, data.view(data_shape), shape)
        self._weights[name] = packed
        return packed

    def put(self, name: str, packed: PackedTensor) -> None:
        self._weights[name] = packed
        self._num_packed += 1

    def finish(self) -> None:
        if self._num_packed == 0:
            how = "copied to large pages" if self._packing.memory.are_offered else "mapped"
            self.state = f"{how} from {self._path}"
            return
        nbytes = sum(packed.data.nbytes for packed in self._weights.values())
        if why_not := self._why_not_written(nbytes):
            self.state = f"packed in memory, not kept: {why_not}"
            return
        self.state = f"packed in memory, kept in {self._path} ({self._why_packed})"
        self._writer = threading.Thread(target=self._write, args=(nbytes,), name="packed weights", daemon=True)
        self._writer.start()

    def wait(self) -> None:
        """Until what `finish` began to write is written."""
        if self._writer is not None:
            self._writer.join()

    def _open(self) -> None:
        if not self._path.exists():
            return
        try:
            fault_point("packed.read")
            self._file = PackedFile.open(self._path)
            os.utime(self._path)  # the file not used for the longest is the first to go
        except Exception as error:  # all of it can be made anew
            return self._distrust(str(error))
        if self._file.header.version != self._packing.version:
            self._distrust("the packed file is of another version")
        elif self._file.header.source != self._source:
            self._distrust("the model's files have changed since they were packed")

    def _distrust(self, why: str) -> None:
        log.info("packing anew: %s", why)
        self._file = None
        self._why_packed = why

    def _why_not_written(self, nbytes: int) -> str | None:
        if nbytes < FEWEST_BYTES:
            return f"{nbytes:,} bytes are packed again sooner than read"
        if nbytes > self._room_bytes:
            return f"{nbytes:,} bytes are more than the {self._room_bytes:,} that packed files may take"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK):
                return f"{self._directory} cannot be written"
            free = shutil.disk_usage(self._directory).free
        except OSError as error:
            return f"{self._directory} cannot be written: {reason(error)}"
        if nbytes * FREE_FOR_EACH_BYTE > free:
            return f"{nbytes:,} bytes are more than half of the {free:,} that are free in {self._directory}"
        return None

    def _write(self, nbytes: int) -> None:
        try:
            fault_point("packed.write")
            sweep(self._directory, self._room_bytes - nbytes)
            weights = [
                (name, packed.type, packed.shape, packed.data.nbytes, self._packing.checksum(packed.data.flatten()))
                for name, packed in self._weights.items()
            ]
            header = place_weights(self._packing.version, self._source, weights)
            write_packed(self._path, header, [packed.data.flatten().numpy() for packed in self._weights.values()])
        except OSError as error:
            log.warning("the packed weights could not be kept in %s: %s", self._path, reason(error))
        except Exception:
            log.exception("the packed weights could not be kept in %s", self._path)


def packed_weights(
    directory: Path, room_bytes: int, source: ModelSource, packing: Packing | None, form: PackedForm
) -> PackedOnDisk | NoPackedWeights:
    """`room_bytes` 0: nothing is read or written."""
    if packing is None or room_bytes == 0:
        return NoPackedWeights()
    try:
        return PackedOnDisk(directory, room_bytes, source, packing, form)
    except OSError as error:
        log.warning("packed weights are not kept: %s", reason(error))
        return NoPackedWeights()
