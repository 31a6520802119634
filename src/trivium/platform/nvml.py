"""What NVIDIA's management library says of the machine's GPUs. Asking it takes no memory of a GPU and opens no context."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

DEVICE_TYPE = "cuda"  # of the GPUs that it sees, as torch calls it
LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_MAX_PROCESSES = 64
_NO_PERMISSION_VALUE = (1 << 64) - 1


class GpuProcess(Struct, frozen=True):
    pid: int
    used_bytes: int | None  # None: the driver does not tell


class Gpu(Struct, frozen=True):
    index: int  # among the GPUs that this process may see, as torch counts them
    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    processes: tuple[GpuProcess, ...]  # that hold memory there now, as far as it can be read
    driver: str


class NvmlError(Exception):
    """Why nothing can be told; a sentence."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def visible_gpus() -> list[Gpu]:
    """In the order in which torch numbers them: that of CUDA_VISIBLE_DEVICES where it is set, by bus address else."""
    with _library() as library:
        driver = _text(library, library.nvmlSystemGetDriverVersion)
        return [_gpu(library, handle, index, driver) for index, handle in enumerate(_visible(library))]


class GpuEnergy:
    """Of the GPUs that this process may see, all together. The library stays open, for it takes long to start."""

    def __init__(self) -> None:
        """Raises NvmlError where it cannot be read."""
        self._library = _started()
        self._handles = _visible(self._library)
        if not self._handles:
            raise NvmlError("no GPU may be seen")
        self._joules()

    def read(self) -> float | None:
        """Joules since the driver was loaded; None: they cannot be read any more."""
        try:
            return self._joules()
        except NvmlError:
            return None

    def _joules(self) -> float:
        total, millijoules = 0, ctypes.c_ulonglong()
        for handle in self._handles:
            code = self._library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
            _check(self._library, code, "read the energy")
            total += millijoules.value
        return total / 1000


def _started() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NvmlError(f"{LIBRARY}, which comes with NVIDIA's driver, is not here") from error
    library.nvmlErrorString.restype = ctypes.c_char_p
    _check(library, library.nvmlInit_v2(), "start NVIDIA's management library")
    return library


@contextmanager
def _library() -> Iterator[ctypes.CDLL]:
    library = _started()
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _visible(library: ctypes.CDLL) -> list[ctypes.c_void_p]:
    """In the order of `visible_gpus`."""
    count = ctypes.c_uint()
    _check(library, library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "count the GPUs")
    handles = [_handle(library, index) for index in range(count.value)]
    chosen = _chosen(os.environ.get("CUDA_VISIBLE_DEVICES"), [_uuid(library, handle) for handle in handles])
    return [handles[place] for place in chosen]


def _check(library: ctypes.CDLL, code: int, what: str) -> None:
    if code:
        raise NvmlError(f"could not {what}: {library.nvmlErrorString(code).decode()}")


def _handle(library: ctypes.CDLL, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(library, library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), f"open GPU {index}")
    return handle


def _text(library: ctypes.CDLL, function: ctypes._NamedFuncPointer, *arguments: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    _check(library, function(*arguments, buffer, _NAME_BYTES), f"read {function.__name__}")
    return buffer.value.decode(errors="replace")


def _uuid(library: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    return _text(library, library.nvmlDeviceGetUUID, handle)


def _chosen(visible: str | None, uuids: list[str]) -> list[int]:
    """Places in `uuids`. As the driver reads the variable: what follows an entry that names no GPU is not seen."""
    if visible is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            place = int(entry)
        else:
            matching = [i for i, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
            if len(matching) != 1:
                break
            place = matching[0]
        chosen.append(place)
    return chosen


def _gpu(library: ctypes.CDLL, handle: ctypes.c_void_p, index: int, driver: str) -> Gpu:
    major, minor = ctypes.c_int(), ctypes.c_int()
    code = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    _check(library, code, "read the compute capability")
    memory = _Memory()
    _check(library, library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)), "read the memory")
    return Gpu(
        index=index,
        name=_text(library, library.nvmlDeviceGetName, handle),
        compute_capability=(major.value, minor.value),
        total_bytes=memory.total,
        free_bytes=memory.free,
        processes=_processes(library, handle),
        driver=driver,
    )


def _processes(library: ctypes.CDLL, handle: ctypes.c_void_p) -> tuple[GpuProcess, ...]:
    """Empty where the driver does not tell, as inside some containers."""
    count, found = ctypes.c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
    try:
        code = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found)
    except AttributeError:  # an older driver
        return ()
    if code:
        return ()
    return tuple(
        GpuProcess(process.pid, None if process.used == _NO_PERMISSION_VALUE else process.used)
        for process in found[: count.value]
    )
