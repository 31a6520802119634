"""Compiling grammars that anybody may have written: each in a fork that is ended where it takes too much.

The forks come from a process that has read the tokenizer and does nothing else, so one costs a few milliseconds and
nothing is lost with it.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import time
import traceback
from collections import deque
from dataclasses import dataclass

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits

from trivium.faults import fault_point
from trivium.grammar.limits import MIB, GrammarLimits
from trivium.grammar.messages import Line, Trial, Try
from trivium.grammar.translate import translate
from trivium.grammar.vocabulary import Vocabulary
from trivium.types.errors import TriviumError
from trivium.types.mix import mix

SILENT = 0  # of the matcher's log levels
MAX_WHY_CHARS = 500
TRIAL_TOKENS = 32
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")


def parser_limits(limits: GrammarLimits) -> LLParserLimits:
    return LLParserLimits(
        step_max_items=limits.parser_items,
        step_lexer_fuel=limits.lexer_fuel,
        max_lexer_states=limits.lexer_states,
        verbose_errors=False,
    )


@dataclass
class _Fork:
    pid: int
    task: Try
    answer: bytearray


class TrialServer:
    def __init__(self, line: Line[Try], vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self._line = line
        self._vocabulary = vocabulary
        self._limits = limits
        self._waiting: deque[Try] = deque()
        self._forks: dict[int, _Fork] = {}  # by the descriptor that it answers on
        self._selector = selectors.DefaultSelector()
        self._selector.register(line, selectors.EVENT_READ)

    def run(self) -> None:
        """Until the engine is gone."""
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._line:
                        self._waiting += self._line.receive()
                    else:
                        self._read(key.fd)
                while self._waiting and len(self._forks) < self._limits.compiling_at_once:
                    self._start(self._waiting.popleft())
        except EOFError:
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)

    def _start(self, task: Try) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._line.close()
            code = 1
            try:
                fault_point("grammar.compile")
                _answer(writing, task, self._vocabulary, self._limits)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        self._forks[reading] = _Fork(pid, task, bytearray())
        self._selector.register(reading, selectors.EVENT_READ)

    def _read(self, descriptor: int) -> None:
        fork = self._forks[descriptor]
        if piece := os.read(descriptor, MIB):
            fork.answer += piece
            return
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del self._forks[descriptor]
        _, status = os.waitpid(fork.pid, 0)
        if status == 0:
            self._line.send(msgspec.msgpack.decode(fork.answer, type=Trial))
        elif os.WIFSIGNALED(status):
            self._line.send(Trial(fork.task.ticket, why=_why_killed(os.WTERMSIG(status), self._limits)))
        else:
            self._line.send(Trial(fork.task.ticket, why="the compiler of grammars failed", is_our_fault=True))


def _why_killed(by: int, limits: GrammarLimits) -> str:
    match by:
        case signal.SIGALRM:
            return f"the grammar takes more than {limits.compile_seconds:g} s to compile"
        case signal.SIGSEGV | signal.SIGBUS:
            return "the grammar is nested too deeply to compile"
        case _:
            return f"the grammar takes more than {limits.compile_bytes // MIB} MiB of memory to compile"


def _answer(descriptor: int, task: Try, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
    """In the fork. It may be ended at any point, by the clock or for want of memory."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.compile_seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(limits.compile_bytes)
    try:
        trial = _try(task, vocabulary, limits)
    except MemoryError:
        trial = Trial(task.ticket, why=f"the grammar takes more than {limits.compile_bytes // MIB} MiB to compile")
    data = msgspec.msgpack.encode(trial)
    while data:
        data = data[os.write(descriptor, data) :]


def _limit_memory(num_bytes: int) -> None:
    try:
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: the clock alone guards
        return
    resource.setrlimit(resource.RLIMIT_AS, (taken + num_bytes, taken + num_bytes))


def _try(task: Try, vocabulary: Vocabulary, limits: GrammarLimits) -> Trial:
    began, before = time.monotonic(), _resident_bytes()
    try:
        compiled = translate(task.grammar, vocabulary.special_ids)
    except TriviumError as error:
        return Trial(task.ticket, why=str(error))
    except ValueError as error:  # a text that is not Unicode, say
        return Trial(task.ticket, why=f"the grammar cannot be read: {error}")
    matcher = LLMatcher(vocabulary.matcher_tokens, compiled, log_level=SILENT, limits=parser_limits(limits))
    _walk(matcher)
    if matcher.is_error():
        return Trial(task.ticket, why=why_failed(matcher))
    return Trial(
        task.ticket,
        compiled,
        num_bytes=max(0, _resident_bytes() - before) + len(compiled),
        seconds=time.monotonic() - began,
    )


def _walk(matcher: LLMatcher) -> None:
    """A few tokens along some path: much of what is wrong with a grammar shows only when it is used."""
    for step in range(TRIAL_TOKENS):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        matcher.consume_token(int(allowed[mix(step) % len(allowed)]))


def why_failed(matcher: LLMatcher) -> str:
    """The matcher's words for it, on one line; it may quote the grammar at length."""
    words = " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())
    if words.startswith("NoExtension"):
        return "no text can match the grammar"
    if keywords := _UNKNOWN_KEYWORDS.fullmatch(words):
        return f"the JSON schema has keywords that are not supported: {keywords[1]}"
    if words.startswith("oneOf constraints"):
        return "oneOf is supported where a value can match one of its branches at most; here anyOf may be meant"
    return f"the grammar cannot be followed: {words[:MAX_WHY_CHARS]}{'…' * (len(words) > MAX_WHY_CHARS)}"


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
