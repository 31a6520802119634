"""Kernels compiled before they are launched, in processes of their own.

What a launch needs compiled is a function of its arguments' types, of the divisibility of its sizes and addresses, and of
its constants. Tensors of torch's device "meta" have all of these and no memory: code that runs on them with launches noted
tells everything that it will need on the GPU, and no GPU is touched. What workers compile comes to the engine through
Triton's cache on disk.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
from msgspec import Struct
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import FileCacheManager, triton_key
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from trivium.types.compile_target import CompileTarget

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.005
MOST_BYTES = 1 << 17  # of one message: some hundred arguments of a kernel


class Wanted(Struct, frozen=True):
    """One compilation of a kernel."""

    module: str
    kernel: str
    specialization: str  # as Triton writes it


Want = Callable[[Wanted], None]


# --- what will be launched


class _TargetAlone:
    """Triton's driver as far as launches that are noted need one."""

    def __init__(self, target: CompileTarget) -> None:
        self._target = GPUTarget(target.backend, target.arch, target.warp_size)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _NotLaunched:
    """In the place of a kernel that is only noted."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        pass

    def run(self, *_: Any) -> None:
        pass


@contextmanager
def launches_noted(target: CompileTarget, want: Want) -> Iterator[None]:
    """Within it no kernel is launched; `want` is told once of each compilation that the launches need."""

    def note(key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel: JITFunction[Any] = fn.jit_function
        kernel.device_caches[0][0][key] = _NotLaunched()
        want(Wanted(fn.module, fn.name, compile["specialization_data"]))
        return True  # it is not to be compiled here

    driver.set_active(_TargetAlone(target))
    knobs.runtime.jit_cache_hook = note
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = None


# --- workers


class Workers:
    """Processes that compile what they are sent, for a parent that has no other threads and no GPU."""

    def __init__(self, target: CompileTarget, count: int) -> None:
        triton_key()  # reads all of Triton, once for all of them
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._workers = [self._fork(partial(_make_driver, theirs))]
        self._workers += [self._fork(partial(_compile_all, target, theirs)) for _ in range(count)]
        theirs.close()

    def _fork(self, work: Callable[[], None]) -> int:
        if worker := os.fork():
            return worker
        self._line.close()
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)

    def send(self, wanted: Wanted) -> None:
        with suppress(BrokenPipeError):  # that all of them have died is told at the end
            self._line.send(msgspec.json.encode(wanted))

    def end(self) -> list[str]:
        """When everything is compiled. Returns what went wrong on the way."""
        self._line.shutdown(socket.SHUT_WR)
        states = [os.waitpid(worker, 0)[1] for worker in self._workers]
        self._line.setblocking(False)
        troubles = [f"a worker ended with {os.waitstatus_to_exitcode(state)}" for state in states if state]
        with suppress(BlockingIOError):
            while told := self._line.recv(MOST_BYTES):
                troubles.append(told.decode())
        return troubles


def _make_driver(line: socket.socket) -> None:
    """What every launch goes through is C code too; the engine needs it first."""
    with _trouble_told("the driver", line):
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()


def _compile_all(target: CompileTarget, line: socket.socket) -> None:
    """Until nothing more will come."""
    driver.set_active(_TargetAlone(target))
    while message := line.recv(MOST_BYTES):
        wanted = msgspec.json.decode(message, type=Wanted)
        with _trouble_told(wanted.kernel, line):
            _compile(wanted)


@contextmanager
def _trouble_told(what: str, line: socket.socket) -> Iterator[None]:
    """The engine will meet it too."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):
            line.send(f"{what}: {type(error).__name__}: {str(error)[:300]}".encode(), socket.MSG_DONTWAIT)


def _compile(wanted: Wanted) -> None:
    kernel: JITFunction[Any] = getattr(import_module(wanted.module), wanted.kernel)
    compiled = kernel.preload(wanted.specialization)
    from triton.backends.nvidia.driver import CudaLauncher

    CudaLauncher(compiled.src, compiled.metadata)  # C code, of which another compiler makes a library


# --- the engine's side


@contextmanager
def waiting_for_others(are_working: Callable[[], bool]) -> Iterator[Callable[[], float]]:
    """Within it, what is not in Triton's cache is waited for as long as others may put it there. Gives the seconds that
    were waited so far."""
    waited = 0.0

    def when_there(look: Callable[[], Any]) -> Any:
        nonlocal waited
        if (found := look()) is not None:
            return found
        began = time.monotonic()
        while are_working():
            if (found := look()) is not None:
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
        waited += time.monotonic() - began
        return look() if found is None else found

    class WaitingCache(FileCacheManager):  # type: ignore[misc]
        def get_file(self, filename: str) -> str | None:
            found: str | None = when_there(lambda: FileCacheManager.get_file(self, filename))
            return found

        def get_group(self, filename: str) -> dict[str, str] | None:
            found: dict[str, str] | None = when_there(lambda: FileCacheManager.get_group(self, filename))
            return found

    with knobs.cache.scope():
        if knobs.cache.manager_class is None:  # else the operator has chosen another, which may know no files
            knobs.cache.manager_class = WaitingCache
        yield lambda: waited
