"""The engine's process as its parent has it: started, spoken with over a socket, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import zmq

from trivium.config.options import EngineOptions
from trivium.engine.messages import Launch, ToEngine, encode
from trivium.types.card import ModelCard
from trivium.types.start_progress import StartProgress, StartStage

# glibc would give every large tensor's memory back to the system when it is freed, and a step that makes one anew would
# wait for its pages to be cleared; 32 MiB is the largest threshold that it takes.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}

# An engine that is faster than this process must not keep it from everything else: a refusal waits for one turn at most.
FRAMES_IN_A_TURN = 4

# The longest path of a socket: sun_path of unix(7) less its final zero.
MAX_SOCKET_PATH = 107


class EngineProcess:
    """One life of the engine process, and the line to it."""

    def __init__(
        self, options: EngineOptions, core: str, context: zmq.Context[zmq.Socket[bytes]], take: Callable[[bytes], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._directory = _private_directory()
        self._reads_on = False  # a turn to read more is due
        self._socket = context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        endpoint = f"ipc://{self._directory}/engine"
        try:
            self._socket.bind(endpoint)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trivium.engine.process"],
                stdin=subprocess.PIPE,
                stdout=2,  # what a library prints there must not mix with this program's own output
                env={**os.environ, **KEEP_FREED_MEMORY},
            )
        except BaseException:
            self._release()
            raise
        self._loop.add_reader(self._descriptor, self.read)
        launch = Launch(options=options, endpoint=endpoint, parent_pid=os.getpid(), core=core)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(encode(launch))
        self.ready: asyncio.Future[ModelCard] = self._loop.create_future()
        self.ended: asyncio.Future[int] = self._loop.create_future()  # the exit code; negative: the signal
        self.progress = StartProgress(StartStage.IMPORTING)  # of its start, as it last told
        self.last_words: str | None = None  # why it is about to end, as it told us
        self._watcher = threading.Thread(target=self._watch, name="engine-watcher", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _watch(self) -> None:
        code = self._process.wait()

        def tell() -> None:
            if not self.ended.done():
                self.ended.set_result(code)

        with contextlib.suppress(RuntimeError):  # the loop was closed before the process ended
            self._loop.call_soon_threadsafe(tell)

    def read(self) -> None:
        """All frames that have come, with turns for others in between where there are many. The socket's descriptor tells of
        changes only, so none may be left."""
        if not self._reads_on:
            self._read_some()

    def _read_some(self) -> None:
        self._reads_on = False
        for _ in range(FRAMES_IN_A_TURN):
            if not self._read_one():
                return
        self._reads_on = True  # once: more turns than one at a time would leave none for others
        self._loop.call_soon(self._read_some)

    def read_all(self) -> None:
        """At once, however many there are."""
        while self._read_one():
            pass

    def _read_one(self) -> bool:
        if self._socket.closed:
            return False
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._take(frame)
        return True

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def send(self, message: ToEngine) -> None:
        """Never waits. What is sent to a process that is gone is lost, as its end is noticed elsewhere."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)
        self._loop.call_soon(self.read)  # sending may have swallowed the descriptor's news of frames that came

    def forget_directory(self) -> None:
        """Once the line is open its name is not needed, and what is gone cannot be left behind."""
        shutil.rmtree(self._directory, ignore_errors=True)

    async def end(self, timeout: float) -> None:
        """Until it has ended, killed after `timeout` seconds; then nothing is left of it."""
        try:
            await asyncio.wait([self.ended], timeout=timeout)
        finally:
            self._process.kill()
            self._watcher.join()
            self._loop.remove_reader(self._descriptor)
            self._release()

    def _release(self) -> None:
        self._socket.close()
        self.forget_directory()


def _private_directory() -> Path:
    """Readable by this user only, and short enough for the name of a socket."""
    directory = Path(tempfile.mkdtemp(prefix="trivium-"))
    if len(f"{directory}/engine".encode()) > MAX_SOCKET_PATH:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="trivium-", dir="/tmp"))
    return directory
