"""Tries a rung's ops against the reference in a process of its own, so that a crash or a hang is an answer too.

    python -m trivium.engine.trial FD

The request is on standard input. The answers go to a file descriptor of their own, a line before each thing that is tried
and one after it: where the process ends or falls silent, the last line says with what.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from trivium.types.decisions import Wish

SILENT_SECONDS = 10.0  # for one op's cases
START_SECONDS = 120.0  # to import torch and make the ops, on a busy machine or from a slow disk


WHOLE = "the trial"  # what is named where nothing was tried yet


class TrialRequest(Struct, frozen=True, kw_only=True):
    """Which ops to make, and what of them to try."""

    platform: str | None  # whose own ops are meant; None: the core's for the device
    wish: Wish
    device: str
    dtype: str  # of activations
    num_threads: int
    instruction_set: str | None = None
    used: tuple[str, ...] = ()  # ops that the model calls


class Verdict(Struct, frozen=True):
    subject: str  # an op, or something else that is tried with them
    problem: str | None
    lasts: bool = True  # whether the same is to be expected of the next start


class _Line(Struct, frozen=True):
    subject: str  # "" : all was tried
    is_begun: bool = False
    problem: str | None = None
    lasts: bool = True


def try_rung(request: TrialRequest, silent_seconds: float = SILENT_SECONDS) -> list[Verdict]:
    """Of everything that there is to try. One child does it all, unless something ends it on the way."""
    verdicts: list[Verdict] = []
    while True:
        came, broke = _run_child(request, tuple(verdicts), silent_seconds)
        verdicts += came
        if broke is None:
            return verdicts
        verdicts.append(broke)
        if broke.subject == WHOLE:
            return verdicts  # it did not even come to the first op, and will not next time


def _run_child(
    request: TrialRequest, known: tuple[Verdict, ...], silent_seconds: float
) -> tuple[list[Verdict], Verdict | None]:
    """What was found beyond what is known, and what ended the child, if it did not end by itself."""
    receive, send = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        open(receive, "rb", buffering=0) as answers,
        subprocess.Popen(
            [sys.executable, "-m", "trivium.engine.trial", str(send)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(send,),
            env=environment,
            start_new_session=True,
        ) as child,
    ):
        os.close(send)
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # one that is gone already says so by its exit code
            child.stdin.write(msgspec.json.encode((request, known)))
            child.stdin.close()
        found: list[Verdict] = []
        subject = WHOLE
        try:
            for line in _lines(answers.fileno(), START_SECONDS, silent_seconds):
                if not line.subject:
                    return found, None
                subject = line.subject
                if not line.is_begun:
                    found.append(Verdict(line.subject, line.problem, line.lasts))
        except TimeoutError as silence:
            return found, Verdict(subject, str(silence), lasts=False)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    is_moments_own = subject == WHOLE or code == -signal.SIGKILL  # want of memory, most likely
    return found, Verdict(subject, f"the process that tried it {how}", lasts=not is_moments_own)


def _lines(descriptor: int, first_seconds: float, silent_seconds: float) -> Iterator[_Line]:
    """Until the writer is gone. Raises TimeoutError where it is there and says nothing."""
    read, seconds = b"", first_seconds
    while True:
        if not _is_readable(descriptor, seconds):
            raise TimeoutError(f"it did not end within {seconds:g} s")
        if not (part := os.read(descriptor, 1 << 16)):
            return
        *whole, read = (read + part).split(b"\n")
        for line in whole:
            yield msgspec.json.decode(line, type=_Line)
            seconds = silent_seconds


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Within that time, a look at a time: where the whole machine stood still, however long, that was one look."""
    looks = math.ceil(seconds)
    return any(select.select([descriptor], [], [], seconds / looks)[0] for _ in range(looks))


def main(descriptor: int) -> None:
    import torch

    from trivium.engine.rungs import make_rung_ops
    from trivium.kernels.verify import SLOW, problem_of, subjects, without

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer; nobody will look at its memory
    torch.set_num_threads(1)
    # Memory that ops ask for is full of NaN, so that what an op leaves unwritten shows. `use_deterministic_algorithms` does
    # the same, but imports torch's compiler first, which takes longer than the trial.
    torch.set_deterministic_debug_mode("warn")
    request, known = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[TrialRequest, tuple[Verdict, ...]])
    with open(descriptor, "wb", buffering=0) as answers:

        def say(line: _Line) -> None:
            answers.write(msgspec.json.encode(line) + b"\n")

        ops = make_rung_ops(request)
        problems = {verdict.subject: verdict.problem for verdict in known if verdict.problem is not None}
        tried = {verdict.subject for verdict in known}
        for subject in subjects(ops, request.used):
            if subject in tried:
                continue
            say(_Line(subject, is_begun=True))
            problem = problem_of(subject, without(ops, problems), request.device)
            if problem is not None:
                problems[subject] = problem
            say(_Line(subject, problem=problem, lasts=problem is None or not problem.startswith(SLOW)))
        say(_Line(""))


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # what a vendor's library does at exit is not the question
