"""Faults on purpose: named places where a test, or an operator who rehearses, makes something go wrong in a real server.

    fault_point("text.tokenize")

does nothing unless the environment variable TRIVIUM_FAULTS names a plan: a JSON file with a list of faults, which is read
again whenever it changes, so that a running server is armed and disarmed by writing it.

    [{"id": "a", "point": "text.tokenize", "action": "raise", "times": 1}]

Every fault that was let loose is told in a line of the file beside it, `<plan>.fired`. What is counted there stays counted
when a process is started again, so that "once" is once in all lives of an engine.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)

VARIABLE = "TRIVIUM_FAULTS"
EXIT_CODE = 86  # of a process that a fault ends; nobody else's


class Hits(StrEnum):
    """Who may fail by one fault; everybody else gets the answer that he would have got without it."""

    NOBODY = "nobody"
    RETRIED = "nobody, unless what is tried again, alone, fails again"
    REQUEST = "one request"
    STEP = "requests whose tokens were in one step"
    PROCESS = "requests in the engine, which is started again"


class FaultPoint(Struct, frozen=True):
    name: str
    fails: str  # what goes wrong there
    hits: Hits


class Action(StrEnum):
    RAISE = "raise"
    MEMORY = "memory"  # MemoryError
    OS_ERROR = "os_error"  # a full disk
    SLEEP = "sleep"
    EXIT = "exit"
    NAN = "nan"  # the caller spoils its numbers


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    point: str
    action: Action = Action.RAISE
    id: str = ""
    times: int | None = None
    seconds: float | None = None  # since the plan was written; with neither of the two, once
    request_id: str | None = None  # only of this request, where the point knows whose it is
    sleep_seconds: float = 0.1


class InjectedFault(RuntimeError):
    """Stands for any bug: nothing in the code knows it."""


POINTS = tuple(
    FaultPoint(name, fails, hits)
    for hits, points in {
        Hits.REQUEST: {
            "http.body": "reading a request's body",
            "http.decode": "decoding its JSON",
            "http.upload": "reading an uploaded form",
            "http.admit": "opening the account of a request for text",
            "access.caller": "telling whose key came with a request",
            "text.template": "rendering messages",
            "text.tokenize": "turning text into tokens",
            "text.detokenize": "turning tokens into text",
            "text.detokenize_end": "the last bytes of a text",
            "text.stops": "looking for stop strings",
            "text.token_text": "the text of one token, for logprobs",
            "llm.lower": "turning a prompt and its parameters into a request for the engine",
            "llm.lower_grammar": "turning a form into a grammar",
            "llm.lower_pooling": "turning a text into a request for a vector",
            "llm.collect": "taking in what the engine said",
            "llm.output": "making an output of it",
            "chat.open": "checking a chat request",
            "chat.answer": "writing a chat's answer",
            "dialects.feed": "reading reasoning and calls in a text",
            "dialects.finish": "reading its end",
            "sse.start": "the head of a stream",
            "sse.send": "sending an event",
            "client.admission": "asking whether there is room",
            "client.submit": "noting a request that goes to the engine",
            "client.send_request": "sending it",
            "client.delta": "handing a delta to the request it is of",
            "metrics.scrape": "writing the page of metrics",
            "records.write": "a write to the database",
            "records.commit": "the commit of several writes",
            "records.read": "a read of the database",
            "blobs.open": "opening a file for bytes that come",
            "blobs.write": "writing them",
            "blobs.sync": "syncing them to the disk",
            "blobs.publish": "giving them their name",
            "blobs.read": "opening a kept file",
            "files.keep": "keeping a file's record",
            "batches.create": "making a batch",
            "responses.context": "reading what a response builds upon",
            "responses.keep": "keeping a response",
            "responses.retrieve": "finding a kept response",
            "conversations.create": "making a conversation",
            "loop.add": "taking a request into the engine",
            "core.check": "checking its token ids",
            "antechamber.enter": "sending its grammar to be compiled",
            "antechamber.admit": "queueing it when the grammar is ready",
            "grammar.compile": "compiling a grammar, in the process for it",
            "runner.logits": "numbers of one row that are not finite",
            "store.read_manifest": "reading what the store knows of a model",
            "store.write_manifest": "writing that down",
            "store.read_file": "reading a model's file to check it",
            "store.write_file": "writing a model's file",
            "fleet.load": "loading a model that is asked for",
            "fleet.evict": "looking for models that can make room",
        },
        Hits.STEP: {
            "client.receive": "taking in a frame of the engine",
            "loop.send_deltas": "sending what a step brought",
        },
        Hits.RETRIED: {
            "grammar.update": "telling the grammar process what was drawn",
            "grammar.masks": "waiting for masks",
            "runner.changes": "starting and ending rows",
            "runner.copies": "copying blocks",
            "runner.batch": "building a step's input",
            "runner.forward": "the model",
            "runner.head": "the logits",
            "runner.sample": "drawing tokens",
            "runner.logprobs": "their log probabilities",
            "runner.prompt_logprobs": "those of a prompt",
            "runner.pool": "the vector of a text",
            "runner.encode": "the model, where it is an encoder",
            "runner.result": "taking a step's result from the device",
        },
        Hits.NOBODY: {
            "observe.metrics": "counting an event",
            "observe.recent": "noting a request for /v1/requests",
            "observe.waits": "noting how long a token took",
            "observe.account": "summing up where a request's time went",
            "access.log": "a line of the access log",
            "access.read_keys": "reading the key file again",
            "access.read_certificate": "reading the certificate again",
            "access.reopen_log": "opening the access log again",
            "fleet.watch": "looking for models whose time is over",
            "fleet.let_go": "ending the engine of a model that goes",
            "client.send_cancel": "telling the engine that nobody waits any more",
            "client.stats": "taking in the engine's figures",
            "client.watch": "looking at the engine's progress",
            "loop.cancel": "ending a request that nobody waits for",
            "loop.send_stats": "telling the engine's figures",
            "batches.look": "looking for batches to run",
            "batches.run": "running one, which is taken up again",
            "packed.read": "packed weights on disk, which are packed anew",
            "packed.write": "keeping packed weights for the next start",
        },
        Hits.PROCESS: {
            "core.plan": "deciding the next step",
            "core.commit": "taking in a step's result",
            "loop.receive": "taking in a frame of the server",
            "client.spawn": "starting the engine's process",
            "model.load": "reading the weights",
        },
    }.items()
    for name, fails in points.items()
)


class Injector:
    """The plan of this process. A plan that cannot be read is told once and arms nothing."""

    def __init__(self, plan: Path) -> None:
        log.warning("%s is set: faults are let loose on purpose, as %s says", VARIABLE, plan)
        self._plan = plan
        self._fired_log = plan.with_name(f"{plan.name}.fired")
        self._version = (0, 0)  # of the file: when written (ns), bytes
        self._faults: dict[str, list[Fault]] = {}  # by point
        self._fired: Counter[str] = Counter()  # by the fault's id
        self._lock = threading.Lock()  # points are reached in several threads

    def reach(self, name: str, request_id: str) -> bool:
        """Whether the caller is to spoil its numbers; every other fault happens here."""
        with self._lock:
            fault = self._due(name, request_id)
        return fault is not None and let_loose(fault)

    def _due(self, name: str, request_id: str) -> Fault | None:
        """The fault that happens now; it is told of."""
        try:
            status = self._plan.stat()
        except OSError:
            return None
        version = (status.st_mtime_ns, status.st_size)
        if version != self._version:
            self._version = version
            self._read()
        for fault in self._faults.get(name, ()):
            if fault.request_id not in (None, request_id):
                continue
            if fault.seconds is not None:
                if time.time() > status.st_mtime + fault.seconds:
                    continue
            elif self._fired[fault.id] >= (1 if fault.times is None else fault.times):
                continue
            self._tell(fault, request_id)
            return fault
        return None

    def _read(self) -> None:
        self._faults, self._fired = {}, Counter()
        try:
            faults = msgspec.json.decode(self._plan.read_bytes(), type=list[Fault])
        except (msgspec.MsgspecError, OSError) as error:
            log.error("%s cannot be read as a plan of faults: %s", self._plan, error)
            return
        known = {point.name for point in POINTS}
        for fault in faults:
            if fault.point not in known:
                log.error("%s names the fault point %r, which does not exist", self._plan, fault.point)
            self._faults.setdefault(fault.point, []).append(fault)
        if self._fired_log.exists():
            self._fired.update(json.loads(line)["id"] for line in self._fired_log.read_text().splitlines())

    def _tell(self, fault: Fault, request_id: str) -> None:
        self._fired[fault.id] += 1
        line = {"id": fault.id, "point": fault.point, "pid": os.getpid(), "request_id": request_id}
        with open(self._fired_log, "a") as file:
            file.write(json.dumps(line) + "\n")


def let_loose(fault: Fault) -> bool:
    match fault.action:
        case Action.RAISE:
            raise InjectedFault(f"a fault was let loose at {fault.point}")
        case Action.MEMORY:
            raise MemoryError(f"a fault was let loose at {fault.point}")
        case Action.OS_ERROR:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case Action.SLEEP:
            time.sleep(fault.sleep_seconds)
        case Action.EXIT:
            os._exit(EXIT_CODE)
        case Action.NAN:
            return True
    return False


# The environment is read once: where it names no plan, a point costs a call and a look at this constant.
_INJECTOR = Injector(Path(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else None


def fault_point(name: str, request_id: str = "") -> bool:
    """True: spoil the numbers (Action.NAN)."""
    return _INJECTOR is not None and _INJECTOR.reach(name, request_id)
