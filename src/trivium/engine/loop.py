"""The engine's loop: take what came in, make one step, say what came of it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Protocol

import zmq

from trivium.engine.gathered_deltas import GatheredDeltas
from trivium.engine.messages import (
    Deltas,
    Drain,
    Drained,
    Fault,
    FromEngine,
    GetStats,
    Refused,
    Shutdown,
    StartFailed,
    Stats,
    decode_to_engine,
    encode,
    report_error,
)
from trivium.faults import fault_point
from trivium.schedule.snapshot import Snapshot
from trivium.schedule.stats import SchedulerStats
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import DeviceUnfitError, OverloadedError, RequestFailedError, TriviumError
from trivium.types.execution_stats import ExecutionStats
from trivium.types.grammar_stats import GrammarStats
from trivium.types.request import Cancel, Request

log = logging.getLogger(__name__)

HEARTBEAT = 0.5  # seconds between stats
PAUSE_MS = 2  # without a message: then nobody is about to send the next one, and there is time to prepare
LAST_WORDS_SECONDS = 2.0  # how long a process that ends of itself waits for its last messages to be read
EXIT_FAULT = 70  # EX_SOFTWARE of sysexits.h
EXIT_ORPHAN = 75


class Core(Protocol):
    """The engine without its process; engine.core.EngineCore is the real one."""

    card: ModelCard

    @property
    def has_work(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str, index: int | None = None) -> None: ...
    def step(self) -> list[Delta]: ...
    def prepare(self) -> bool:
        """Something that later steps need, while there is nothing else to do, for some milliseconds; False: nothing is left."""

    def take_refusals(self) -> list[tuple[str, TriviumError]]: ...
    def stats(self) -> SchedulerStats: ...
    def snapshot(self) -> Snapshot: ...
    def execution_stats(self) -> ExecutionStats: ...
    def grammar_stats(self) -> GrammarStats: ...


class EngineLoop:
    def __init__(self, core: Core, socket: zmq.Socket[bytes], parent_pid: int) -> None:
        self._core = core
        self._socket = socket
        self._parent_pid = parent_pid
        self._gathered = GatheredDeltas()
        self._draining = False
        self._shut_down = False
        self._num_steps = 0
        self._step_seconds = 0.0
        self._longest_step = 0.0
        self._malformed_frames = 0
        self._last_step = self._last_turn = self._last_beat = time.monotonic()

    def drain(self) -> None:
        """Safe to call from a signal handler."""
        self._draining = True

    def run(self) -> int:
        """Turns until told to end; the process's exit code."""
        try:
            return self._turn_to_the_end()
        except Exception as error:
            log.exception("the engine's loop failed")
            say_goodbye(self._socket, Fault(f"the engine's loop failed: {_sentence(error)}"))
            return EXIT_FAULT

    def _turn_to_the_end(self) -> int:
        while True:
            self._take_messages()
            if self._shut_down:
                return 0
            if self._draining and not self._core.has_work:
                say_goodbye(self._socket, Drained())
                return 0
            if os.getppid() != self._parent_pid:
                return EXIT_ORPHAN
            if self._core.has_work:
                began = time.monotonic()
                try:
                    deltas = self._core.step()
                except Exception as error:
                    log.exception("the engine failed in a step")
                    is_final = isinstance(error, DeviceUnfitError)
                    say_goodbye(self._socket, Fault(f"the engine failed in a step: {_sentence(error)}", is_final))
                    return EXIT_FAULT
                self._num_steps += 1
                self._last_step = time.monotonic()
                self._step_seconds += self._last_step - began
                self._longest_step = max(self._longest_step, self._last_step - began)
                if deltas := self._gathered.to_tell(deltas):
                    self._send_deltas(deltas)
                for request_id, refusal in self._core.take_refusals():
                    self._gathered.forget(request_id)
                    self._send(Refused(request_id, report_error(refusal)))
            self._last_turn = time.monotonic()
            if self._last_turn - self._last_beat >= HEARTBEAT:
                self._beat()

    def _take_messages(self) -> None:
        """All that wait; with nothing to do, sleeps until one comes or it is time to give a sign of life."""
        if not self._core.has_work and not self._draining:
            while not self._socket.poll(PAUSE_MS) and self._core.prepare():
                pass
            wait = self._last_beat + HEARTBEAT - time.monotonic()
            self._socket.poll(max(0, int(wait * 1000) + 1))
        while not self._shut_down:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            fault_point("loop.receive")
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        match decode_to_engine(frame):
            case None:
                self._malformed_frames += 1
                log.warning("dropped a malformed message to the engine")
            case Request() as request:
                self._add(request)
            case Cancel(request_id, index):
                self._cancel(request_id, index)
            case GetStats(ticket, with_snapshot):
                self._beat(ticket, with_snapshot)
            case Drain():
                self._draining = True
            case Shutdown():
                self._shut_down = True

    def _add(self, request: Request) -> None:
        try:
            if self._draining:
                raise OverloadedError("the engine is draining and takes no new requests", retry_after=5.0)
            fault_point("loop.add", request.id)
            self._core.add(request)
            self._gathered.begin(request)
        except TriviumError as error:
            self._send(Refused(request.id, report_error(error)))
        except Exception as error:
            log.exception("the engine could not take a request")
            failure = RequestFailedError(f"the engine could not take the request: {_sentence(error)}")
            self._send(Refused(request.id, report_error(failure)))

    def _cancel(self, request_id: str, index: int | None) -> None:
        try:
            fault_point("loop.cancel", request_id)
        except Exception:  # it runs to its end, and nobody reads it
            log.exception("%s could not be ended before its time", request_id)
            return
        self._core.cancel(request_id, index)

    def _send_deltas(self, deltas: list[Delta]) -> None:
        """Where they cannot be sent, those whose tokens are lost end: no answer is told with a gap in it."""
        try:
            fault_point("loop.send_deltas")
            self._send(Deltas(deltas))
        except Exception:
            log.exception("what a step brought could not be sent")
            failure = report_error(RequestFailedError("what a step brought could not be sent"))
            for request_id in {delta.request_id for delta in deltas}:
                self._gathered.forget(request_id)
                self._core.cancel(request_id)
                self._send(Refused(request_id, failure))

    def _beat(self, ticket: int | None = None, with_snapshot: bool = False) -> None:
        self._last_beat = time.monotonic()
        try:
            fault_point("loop.send_stats")
            self._send_stats(ticket, with_snapshot)
        except Exception:
            log.exception("the engine's figures could not be told")

    def _send_stats(self, ticket: int | None = None, with_snapshot: bool = False) -> None:
        self._send(
            Stats(
                scheduler=self._core.stats(),
                execution=self._core.execution_stats(),
                grammar=self._core.grammar_stats(),
                num_steps=self._num_steps,
                step_seconds=self._step_seconds,
                last_step=self._last_step,
                last_turn=self._last_turn,
                longest_step=self._longest_step,
                malformed_frames=self._malformed_frames,
                ticket=ticket,
                snapshot=self._core.snapshot() if with_snapshot else None,
            )
        )

    def _send(self, message: FromEngine) -> None:
        """Never waits: a client that is gone is noticed at the next turn by the parent's id."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)


def say_goodbye(socket: zmq.Socket[bytes], message: StartFailed | Fault | Drained) -> None:
    """Send the last message and wait until the client says that it has read it."""
    socket.send(encode(message), zmq.NOBLOCK)
    give_up = time.monotonic() + LAST_WORDS_SECONDS
    while (left := give_up - time.monotonic()) > 0:
        if socket.poll(int(left * 1000) + 1) and isinstance(decode_to_engine(socket.recv()), Shutdown):
            return


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
