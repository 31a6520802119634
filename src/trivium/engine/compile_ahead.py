"""Kernels compiled beside the start, by a process that begins with it and ends before it.

    python -m trivium.engine.compile_ahead        its AheadRequest on standard input, its AheadAnswer on standard output

The process imports what it needs while the engine imports the same, hears then what the engine has planned, runs all of
its steps on shapes alone, and has whatever they launch compiled by workers. The engine goes on meanwhile, and waits only
where it comes to a kernel that is not there yet. Nothing depends on the process: what it does not compile, the engine does.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Self

import msgspec
from msgspec import Struct

from trivium.config.options import EngineOptions
from trivium.config.resolve import EngineConfig
from trivium.platform.cpu import usable_threads
from trivium.platform.nvml import DEVICE_TYPE, NvmlError, visible_gpus
from trivium.types.compile_target import CompileTarget

log = logging.getLogger(__name__)

LEAST_CORES = 4  # with fewer, the workers would take the time of the engine itself
OTHER_CORES = 2  # of the engine, and of the process that says what is to be compiled
MOST_SECONDS = 90.0  # of waiting for it; then the engine compiles by itself


class AheadRequest(Struct, frozen=True):
    config: EngineConfig
    target: CompileTarget
    num_workers: int


class AheadAnswer(Struct, frozen=True):
    num_kernels: int
    num_workers: int
    seconds: float
    troubles: list[str]  # what could not be compiled, or tried on shapes alone


class AheadCompiler:
    """The process, from the engine's side."""

    def __init__(self, num_workers: int, command: tuple[str, ...] = ("-m", "trivium.engine.compile_ahead")) -> None:
        self._num_workers = num_workers
        self._until = float("inf")
        self._waiting = ExitStack()
        self._is_asked = False
        self._waited: Callable[[], float] = float
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def begin(self, config: EngineConfig, target: CompileTarget) -> None:
        """From now on, until `end`, kernels that are not in Triton's cache are waited for."""
        from trivium.kernels.triton.ahead import waiting_for_others

        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # one that is gone already is not waited for
            self._process.stdin.write(msgspec.json.encode(AheadRequest(config, target, self._num_workers)))
            self._process.stdin.close()
        self._is_asked = True
        self._until = time.monotonic() + MOST_SECONDS
        self._waited = self._waiting.enter_context(waiting_for_others(self._is_working))

    def _is_working(self) -> bool:
        return self._process.poll() is None and time.monotonic() < self._until

    def end(self) -> str:
        """Nothing is left of it. What came of it, in a sentence; empty where it was not asked for anything."""
        self._waiting.close()
        if not self._is_asked:
            self._kill()
            return ""
        is_late = self._process.poll() is None
        self._kill()
        assert self._process.stdout is not None
        told = self._process.stdout.read()
        if is_late:
            return f"the engine was ready before all kernels were compiled ahead, and waited {self._waited():.1f} s for some"
        try:
            answer = msgspec.json.decode(told, type=AheadAnswer)
        except msgspec.DecodeError:
            code = self._process.returncode
            return f"no kernels were compiled ahead: the process that does it ended with exit code {code}"
        sentence = (
            f"{answer.num_kernels} kernels compiled or found ahead by {answer.num_workers} workers in "
            f"{answer.seconds:.1f} s, of which the engine waited {self._waited():.1f} s"
        )
        failed = f"; {len(answer.troubles)} failures, such as: {answer.troubles[0]}" if answer.troubles else ""
        return sentence + failed

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with its workers
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        self._kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


def start_ahead_compiler(options: EngineOptions) -> AheadCompiler | None:
    """None: there is nothing to compile, or nobody who could while the engine starts."""
    if options.device not in ("auto", DEVICE_TYPE) or options.kernels not in ("auto", "triton"):
        return None
    num_workers = usable_threads()[0] - OTHER_CORES
    if num_workers < LEAST_CORES - OTHER_CORES or importlib.util.find_spec("triton") is None:
        return None
    try:
        if not visible_gpus():
            return None
    except NvmlError as error:
        log.debug("no kernels are compiled ahead: %s", error)
        return None
    threading.Thread(target=_read_triton, name="read-triton", daemon=True).start()
    return AheadCompiler(num_workers)


def _read_triton() -> None:
    """The cache goes by a hash of all of Triton, which this process then has when its first kernel is launched."""
    from triton.runtime.cache import triton_key

    triton_key()


@contextmanager
def _torch_compile_left_away() -> Iterator[None]:
    """Torch's descriptions of ops on shapes import its compiler at their first use, to be left alone by it. That takes two
    seconds; where it is never imported, it leaves them alone anyway."""
    import torch

    stand_in = ModuleType("torch._dynamo")
    stand_in.disable = lambda function, *_, **__: function  # type: ignore[attr-defined]
    sys.modules[stand_in.__name__] = torch._dynamo = stand_in
    try:
        yield
    finally:
        del sys.modules[stand_in.__name__], torch._dynamo


def main() -> None:
    import torch

    from trivium.engine.dry_run import dry_run
    from trivium.engine.process import die_with_parent
    from trivium.formats.source import open_source
    from trivium.kernels.select import gpu_ops_for
    from trivium.kernels.triton.ahead import Wanted, Workers, launches_noted
    from trivium.models.registry import read_spec

    die_with_parent()
    with _torch_compile_left_away():
        torch.cat([torch.empty(1, device="meta")] * 2)  # what tensors without numbers need is imported with the first
    asked = sys.stdin.buffer.read()
    if not asked:
        return
    began = time.monotonic()
    request = msgspec.json.decode(asked, type=AheadRequest)
    spec = read_spec(open_source(Path(request.config.options.model)))
    workers = Workers(request.target, request.num_workers)
    num_kernels = 0
    troubles: list[str] = []

    def want(wanted: Wanted) -> None:
        nonlocal num_kernels
        num_kernels += 1
        workers.send(wanted)

    ops = gpu_ops_for(request.target, "ahead", request.config.options.deterministic)
    with launches_noted(request.target, want):
        try:
            with _torch_compile_left_away():
                dry_run(request.config, spec, ops)
        except Exception:
            try:
                dry_run(request.config, spec, ops)
            except Exception as error:
                troubles.append(f"not every step could be tried on shapes alone: {type(error).__name__}: {error}")
    troubles += workers.end()
    answer = AheadAnswer(num_kernels, request.num_workers, time.monotonic() - began, troubles)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
    os._exit(0)
