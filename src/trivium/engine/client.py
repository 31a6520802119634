"""The client of an engine process: starts it, speaks with it, notices its end and starts it again."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import time
from collections import deque
from enum import StrEnum
from typing import Any

import zmq
from msgspec import Struct

from trivium.config.options import EngineOptions
from trivium.engine.admission import Admission, Place
from trivium.engine.child import EngineProcess
from trivium.engine.messages import (
    Deltas,
    Drain,
    Drained,
    Fault,
    GetStats,
    Ready,
    Refused,
    Shutdown,
    StartFailed,
    Starting,
    Stats,
    decode_from_engine,
    report_error,
    restore_error,
)
from trivium.engine.overload_log import OverloadLog
from trivium.engine.request_stream import RequestStream
from trivium.engine.watchdog import Action, Watchdog
from trivium.faults import fault_point
from trivium.types.card import ModelCard
from trivium.types.delta import Delta
from trivium.types.errors import (
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
    TriviumError,
)
from trivium.types.overload import AdmissionStats
from trivium.types.request import Cancel, Request
from trivium.types.start_progress import StartProgress

log = logging.getLogger(__name__)

REAL_CORE = "trivium.engine.open_core:open_core"


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    DEAD = "dead"


class Supervision(Struct, frozen=True):
    """How long to wait and how often to try again. Seconds."""

    start_timeout: float = 600.0  # without news of its start: one stage on a slow disk
    max_restarts: int = 5  # within `restart_window`; one more death is for good
    restart_window: float = 60.0
    first_backoff: float = 0.5  # after a start that failed; doubles with each. Who has served is started again at once
    max_backoff: float = 5.0
    stop_timeout: float = 5.0  # from being told to end to being killed
    watch_seconds: float = 0.25  # between looks at the engine's progress

    def backoff(self, num_failed_starts: int) -> float:
        """The wait before one more start, after so many in a row that failed."""
        return min(self.first_backoff * 2.0 ** (num_failed_starts - 1), self.max_backoff)


class Health(Struct, frozen=True):
    """Ages are seconds before now; None before the engine's first sign of life."""

    state: EngineState
    last_turn_age: float | None
    last_step_age: float | None
    has_work: bool
    stalled: bool
    patience: float | None  # from when on an age is a stall
    overload: AdmissionStats


class EngineClient:
    """One engine process, kept alive from `start` to `close`. For use inside one event loop."""

    def __init__(
        self, options: EngineOptions, *, supervision: Supervision | None = None, core: str = REAL_CORE
    ) -> None:
        self._options = options
        self._supervision = supervision or Supervision()
        self._core = core
        self._state = EngineState.STARTING
        self._settled = asyncio.Event()  # the state is not one of starting and restarting
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._child: EngineProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._card: ModelCard | None = None
        self._why_dead: TriviumError = EngineDeadError("the engine was closed")
        self._streams: dict[str, RequestStream] = {}
        self._tickets = itertools.count()
        self._stats_asked: dict[int, asyncio.Future[Stats]] = {}
        self._last_stats: Stats | None = None
        self._watchdog: Watchdog | None = None  # while the process is ready
        self._admission = Admission(options.max_num_seqs, options.max_waiting, options.max_first_token_seconds)
        self._overload_log = OverloadLog()
        self.malformed_frames = 0
        self.num_restarts = 0
        self._has_served = False  # in its present life
        self._is_unfit = False  # the device, for any process

    # Life

    async def start(self) -> None:
        """Until the engine is ready. Raises what kept it from it."""
        if self._supervisor is None:
            self._context = zmq.Context()
            self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")
        await self._settled.wait()
        if self._state is EngineState.DEAD:
            raise _fresh(self._why_dead)

    async def drain(self, timeout: float | None = None) -> None:
        """Take no new requests and let those under way end; what has not ended after `timeout` seconds is cancelled."""
        if self._child is not None and self._state is EngineState.READY:
            self._set_state(EngineState.DRAINING)
            self._child.send(Drain())
            if not await self._process_ends_within(timeout):
                for request_id in self._streams:
                    self.cancel(request_id)
                await self._process_ends_within(self._supervision.stop_timeout)
        await self.close()

    async def close(self) -> None:
        """End the process; requests under way fail. Nothing of it is left: process, task, thread, socket, file."""
        if self._state is not EngineState.DEAD:
            self._die(EngineDeadError("the engine was closed"))
        if self._child is not None:
            self._child.send(Shutdown())
            await self._process_ends_within(self._supervision.stop_timeout)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        if self._context is not None:
            self._context.term()
            self._context = None

    def drain_on_sigterm(self, timeout: float | None = None) -> None:
        """For programs that have no handling of SIGTERM of their own."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(self.drain(timeout)))

    # Requests

    def knock(self, priority: int, visitor: int | None) -> Place:
        """A place for a request of which nothing else is known yet. Raises OverloadedError; see engine/admission.py."""
        return self._admission.knock(priority, visitor, time.monotonic())

    async def submit(self, request: Request, place: Place | None = None) -> RequestStream:
        """Send a request; during a restart, wait for its end. What the engine refuses is raised by the stream."""
        while True:
            await self._until_serving()
            previous = self._streams.get(request.id)
            if previous is None:
                break
            if not previous.closed:
                raise InvalidRequestError(f"a request with the id {request.id!r} is already being served", param="id")
            await previous.ended.wait()
        assert self._child is not None
        fault_point("client.admission", request.id)
        self._admission.check(request, time.monotonic(), place)
        fault_point("client.submit", request.id)
        stream = self._streams[request.id] = RequestStream(request, self._admission, self.cancel)
        try:
            fault_point("client.send_request", request.id)
            self._child.send(request)
        except Exception:
            del self._streams[request.id]
            stream.fail(RequestFailedError("the request could not be sent to the engine"))
            raise
        return stream

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """End a request or one of its sequences; an unknown one is no matter."""
        if self._child is None:
            return
        try:
            fault_point("client.send_cancel", request_id)
            self._child.send(Cancel(request_id, index))
        except Exception:  # it runs to its end, and nobody reads it
            log.exception("the engine could not be told that nobody waits for %s", request_id)

    # What can be seen

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def card(self) -> ModelCard:
        if self._card is None:
            raise EngineDeadError("the engine has not been ready yet")
        return self._card

    @property
    def pid(self) -> int | None:
        """Of the engine process."""
        return self._child.pid if self._child is not None else None

    @property
    def start_progress(self) -> StartProgress | None:
        """Of a start that is under way."""
        is_starting = self._state in (EngineState.STARTING, EngineState.RESTARTING)
        return self._child.progress if is_starting and self._child is not None else None

    async def stats(self, *, with_snapshot: bool = False) -> Stats:
        """As of now: the engine answers between two steps."""
        await self._until_serving()
        assert self._child is not None
        ticket = next(self._tickets)
        answer: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._stats_asked[ticket] = answer
        self._child.send(GetStats(ticket, with_snapshot))
        try:
            return await answer
        finally:
            del self._stats_asked[ticket]

    def health(self) -> Health:
        stats, now = self._last_stats, time.monotonic()
        last_turn_age = now - stats.last_turn if stats is not None else None
        serving = self._state in (EngineState.READY, EngineState.DRAINING)
        return Health(
            state=self._state,
            last_turn_age=last_turn_age,
            last_step_age=now - stats.last_step if stats is not None else None,
            has_work=bool(self._streams),
            stalled=serving and self._is_stalled(now),
            patience=self._watchdog.patience if self._watchdog is not None else None,
            overload=self.admission_stats(),
        )

    def admission_stats(self) -> AdmissionStats:
        return self._admission.stats(time.monotonic())

    def _is_stalled(self, now: float) -> bool:
        return bool(self._options.stall_seconds) and self._watchdog is not None and self._watchdog.is_stalled(now)

    # Supervision

    async def _supervise(self) -> None:
        deaths: deque[float] = deque()
        num_failed_starts = 0  # in a row
        while True:
            self._has_served = False
            error = await self._live()
            num_failed_starts = 0 if self._has_served else num_failed_starts + 1
            if self._state in (EngineState.DRAINING, EngineState.DEAD) or self._card is None or self._is_unfit:
                return self._die(error)
            now = time.monotonic()
            deaths.append(now)
            while deaths[0] < now - self._supervision.restart_window:
                deaths.popleft()
            if len(deaths) > self._supervision.max_restarts:
                return self._die(error)
            self._set_state(EngineState.RESTARTING)
            self._fail_all(error)
            log.warning("%s; starting it again", error)
            self.num_restarts += 1
            if num_failed_starts:
                await asyncio.sleep(self._supervision.backoff(num_failed_starts))

    async def _live(self) -> TriviumError:
        """One life of the process, from its start to its end; why it ended."""
        assert self._context is not None
        try:
            fault_point("client.spawn")
            child = self._child = EngineProcess(self._options, self._core, self._context, self._receive)
        except Exception as failure:
            log.exception("the engine process could not be started")
            return EngineDeadError(f"the engine process could not be started: {type(failure).__name__}")
        timeout = self._supervision.start_timeout
        try:
            await ready_ended_or_silent(child, timeout)
            if not child.ready.done():
                if not child.ended.done():
                    return EngineDeadError(
                        f"the engine's start gave no news for {timeout:g} seconds ({child.progress})"
                    )
                return EngineDeadError(f"the engine process {_describe_exit(child.ended.result())} while starting")
            if (error := child.ready.exception()) is not None:
                await child.end(self._supervision.stop_timeout)
                assert isinstance(error, TriviumError)
                return error
            child.forget_directory()
            self._card = child.ready.result()
            self._has_served = True
            self._watchdog = Watchdog(self._options.stall_seconds, time.monotonic())
            if self._state is not EngineState.DEAD:
                self._set_state(EngineState.READY)
            await self._watch(child)
            code = child.ended.result()
            return EngineDeadError(child.last_words or f"the engine process {_describe_exit(code)}")
        finally:
            if self._state is EngineState.READY:
                self._set_state(EngineState.RESTARTING)  # so that nobody is let in where no process is
            self._child = None
            self._watchdog = None
            self._last_stats = None
            await child.end(0)

    async def _watch(self, child: EngineProcess) -> None:
        """Until the process has ended; it is ended where it lives and does not progress."""
        while not child.ended.done():
            await asyncio.wait([child.ended], timeout=self._supervision.watch_seconds)
            try:
                await self._look(child)
            except Exception:
                log.exception("the engine's progress could not be looked at")

    async def _look(self, child: EngineProcess) -> None:
        fault_point("client.watch")
        child.read_all()  # what came while this process was busy itself
        watchdog = self._watchdog
        if not self._options.stall_seconds or watchdog is None:
            return
        now = time.monotonic()
        match watchdog.look(now):
            case Action.DUMP_STACKS:
                log.error("the engine has not turned for %.1f s; its stacks follow", watchdog.age(now))
                child.signal(signal.SIGUSR1)
            case Action.END:
                child.last_words = f"the engine made no progress for {watchdog.age(now):.1f} s and was ended"
                child.signal(signal.SIGKILL)
                await child.ended

    def _receive(self, frame: bytes) -> None:
        """A frame that cannot be taken in may have held tokens of anybody: no answer is told with a gap in it."""
        try:
            fault_point("client.receive")
            self._take(frame)
        except Exception:
            log.exception("a message of the engine could not be taken in")
            for request_id in [*self._streams]:
                self._fail_one(request_id, RequestFailedError("what the engine said could not be taken in"))

    def _fail_one(self, request_id: str, error: TriviumError) -> None:
        """What the engine holds of it is given back."""
        if (stream := self._streams.pop(request_id, None)) is not None:
            stream.fail(error)
            self.cancel(request_id)

    def _take(self, frame: bytes) -> None:
        message = decode_from_engine(frame)
        child = self._child
        if child is None:
            return
        match message:
            case Deltas(deltas):
                for delta in deltas:
                    self._take_delta(delta)
            case Stats():
                self._take_stats(message)
            case Refused(request_id, report):
                if (stream := self._streams.pop(request_id, None)) is not None:
                    stream.fail(restore_error(report))
            case Starting(progress):
                child.progress = progress
            case Ready(card):
                child.ready.set_result(card)
            case StartFailed(report):
                child.ready.set_exception(restore_error(report))
                child.send(Shutdown())
            case Fault(text, is_final):
                child.last_words = text
                self._is_unfit = is_final
                child.send(Shutdown())
            case Drained():
                child.last_words = "the engine was drained"
                child.send(Shutdown())
            case None:
                self.malformed_frames += 1

    def _take_delta(self, delta: Delta) -> None:
        stream = self._streams.get(delta.request_id)
        if stream is None:
            return
        try:
            fault_point("client.delta", delta.request_id)
            stream.put(delta)
        except Exception:
            log.exception("what the engine said of %s could not be taken in", delta.request_id)
            self._fail_one(delta.request_id, RequestFailedError("what the engine said could not be taken in"))
            return
        if stream.ended.is_set():
            del self._streams[delta.request_id]

    def _take_stats(self, stats: Stats) -> None:
        asked = self._stats_asked.get(stats.ticket) if stats.ticket is not None else None
        if asked is not None and not asked.done():
            asked.set_result(stats)
        try:
            fault_point("client.stats")
            self._last_stats = stats
            self._admission.hear(stats.scheduler.prompt_token_seconds)
            self._overload_log.hear(self.admission_stats())
            if self._watchdog is not None:
                self._watchdog.hear(stats.last_turn, stats.longest_step)
        except Exception:
            log.exception("the engine's figures could not be taken in")

    async def _until_serving(self) -> None:
        try:
            async with asyncio.timeout(self._supervision.start_timeout):
                while self._state in (EngineState.STARTING, EngineState.RESTARTING):
                    await self._settled.wait()
        except TimeoutError:
            raise EngineDeadError("the engine is starting and was not ready in time") from None
        if self._state is EngineState.DRAINING:
            raise OverloadedError("the engine is draining and takes no new requests", retry_after=5.0)
        if self._state is EngineState.DEAD:
            raise _fresh(self._why_dead)

    async def _process_ends_within(self, timeout: float | None) -> bool:
        child = self._child
        if child is None:
            return True
        done, _ = await asyncio.wait([child.ended], timeout=timeout)
        return bool(done)

    def _set_state(self, state: EngineState) -> None:
        self._state = state
        if state in (EngineState.STARTING, EngineState.RESTARTING):
            self._settled.clear()
        else:
            self._settled.set()

    def _die(self, error: TriviumError) -> None:
        self._why_dead = error
        self._set_state(EngineState.DEAD)
        self._fail_all(error)

    def _fail_all(self, error: TriviumError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(_fresh(error))
        for asked in self._stats_asked.values():
            if not asked.done():
                asked.set_exception(_fresh(error))


async def ready_ended_or_silent(child: EngineProcess, timeout: float) -> None:
    """Until the process is ready, has ended, or has given no news of its start for `timeout` seconds."""
    first: list[asyncio.Future[Any]] = [child.ready, child.ended]
    known = None
    while child.progress != known:
        known = child.progress
        done, _ = await asyncio.wait(first, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return


def _fresh(error: TriviumError) -> TriviumError:
    """The same error anew: one object raised in many places gathers all their tracebacks."""
    return restore_error(report_error(error))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
