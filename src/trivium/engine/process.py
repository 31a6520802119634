"""The engine's own process: `python -m trivium.engine.process`, its Launch on standard input.

Torch and the model are imported only after the line to the client is open, so that whatever goes wrong is told.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import zmq

from trivium.engine.loop import EXIT_ORPHAN, Core, EngineLoop, say_goodbye
from trivium.engine.messages import Launch, Ready, StartFailed, Starting, encode, report_error
from trivium.observe.log_lines import set_up_logging
from trivium.types.errors import EngineDeadError, TriviumError
from trivium.types.start_progress import StartProgress, StartStage, TellProgress

log = logging.getLogger(__name__)

EXIT_START_FAILED = 78  # EX_CONFIG of sysexits.h

SECONDS_BETWEEN_NEWS = 0.2  # of one stage of the start

_PR_SET_PDEATHSIG = 1


def main() -> int:
    launch = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Launch)
    set_up_logging(launch.options.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the watchdog asks for stacks
    if os.getppid() != launch.parent_pid:
        return EXIT_ORPHAN
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(launch.endpoint)
    try:
        return serve(launch, socket)
    finally:
        socket.close()
        context.term()


def serve(launch: Launch, socket: zmq.Socket[bytes]) -> int:
    try:
        core = make_core(launch, start_news(socket))
    except TriviumError as error:
        say_goodbye(socket, StartFailed(report_error(error)))
        return EXIT_START_FAILED
    except Exception as error:
        log.exception("the engine failed while starting")
        failure = EngineDeadError(f"the engine failed while starting: {type(error).__name__}: {error}")
        say_goodbye(socket, StartFailed(report_error(failure)))
        return EXIT_START_FAILED
    loop = EngineLoop(core, socket, launch.parent_pid)
    signal.signal(signal.SIGTERM, lambda *_: loop.drain())
    gc.freeze()  # what the start made stays: later collections need not walk through it
    socket.send(encode(Ready(core.card)))
    return loop.run()


def start_news(socket: zmq.Socket[bytes]) -> TellProgress:
    """Tells of every stage, and now and then how far it is."""
    stage: StartStage | None = None
    told = 0.0

    def tell(progress: StartProgress) -> None:
        nonlocal stage, told
        now = time.monotonic()
        if progress.stage is not stage or now - told >= SECONDS_BETWEEN_NEWS:
            stage, told = progress.stage, now
            socket.send(encode(Starting(progress)))

    return tell


def make_core(launch: Launch, tell: TellProgress) -> Core:
    tell(StartProgress(StartStage.IMPORTING))
    module, _, name = launch.core.partition(":")
    with without_collections():
        make = getattr(importlib.import_module(module), name)
    core: Core = make(launch.options, tell)
    return core


@contextmanager
def without_collections() -> Iterator[None]:
    """Imports make objects that stay: looking for garbage among them takes an eighth of the time of torch's."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def die_with_parent() -> None:
    """A parent that is killed cannot say goodbye; on Linux the kernel then ends us, elsewhere the loop notices."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking torch and the model apart object by object would take a second and serve nobody
