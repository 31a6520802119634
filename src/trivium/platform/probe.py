"""Asks a platform in a process of its own, so that a crash or a hang is an answer too.

    python -m trivium.platform.probe NAME QUESTION FD

The answer goes to its own file descriptor: vendors' libraries print what they like on the others.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from trivium.platform.contract import Detection, DeviceFacts, Platform
from trivium.types.checks import Check

T = TypeVar("T")
Question = Literal["detect", "probe", "precheck"]

SECONDS = 30.0  # importing a vendor's stack and opening its device takes some


class Asked(Struct, Generic[T], frozen=True):
    """`answer` is None where none came; then `failure` says why, as a part of a sentence."""

    answer: T | None
    failure: str = ""


class _Sent(Struct, frozen=True):
    answer: msgspec.Raw = msgspec.Raw()
    failure: str = ""


_QUESTIONS: dict[str, tuple[Any, Callable[[Platform], Any]]] = {
    "detect": (Detection, lambda platform: platform.detect()),
    "probe": (DeviceFacts, lambda platform: platform.probe()),
    "precheck": (tuple[Check, ...], lambda platform: platform.precheck()),
}


def ask_in_child(name: str, question: Question, seconds: float = SECONDS) -> Asked[Any]:
    receive, send = os.pipe()
    command = [sys.executable, "-m", "trivium.platform.probe", name, question, str(send)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        open(receive, "rb") as answers,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(send,),
            env=environment,
            start_new_session=True,
        ) as child,
    ):
        os.close(send)
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return Asked(None, f"gave no answer to {question!r} within {seconds:g} s")
        sent = answers.read()
    if code < 0:
        return Asked(None, f"was killed by {signal.Signals(-code).name} when asked to {question}")
    return _read(sent, question, code)


def _read(sent: bytes, question: Question, code: int) -> Asked[Any]:
    kind, _ = _QUESTIONS[question]
    try:
        message = msgspec.json.decode(sent, type=_Sent)
        if message.failure:
            return Asked(None, message.failure)
        return Asked(msgspec.json.decode(message.answer, type=kind))
    except msgspec.DecodeError as error:
        what = f"ended with exit code {code} and no answer" if not sent else f"gave no proper answer: {error}"
        return Asked(None, f"{what} when asked to {question}")


def main(name: str, question: str, descriptor: int) -> None:
    from trivium.platform.select import load_platform

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer; nobody will look at its memory
    with open(descriptor, "wb") as answers:
        try:
            _, ask = _QUESTIONS[question]
            message = _Sent(msgspec.Raw(msgspec.json.encode(ask(load_platform(name)))))
        except Exception as error:
            message = _Sent(msgspec.Raw(b"null"), f"{type(error).__name__} when asked to {question}: {error}")
        answers.write(msgspec.json.encode(message))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    os._exit(0)  # what a vendor's library does at exit is not the question
