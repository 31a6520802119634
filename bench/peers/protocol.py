"""How `bench_cpu.py` talks to an engine in a process of its own: a line of JSON to it, a line of JSON back.

The standard library alone, as it runs in every peer's environment. The first line back says what the engine is; each
line to it is one call of `generate`, and its answer holds the seconds that the call took, by the engine's own clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Engine(Protocol):
    about: dict[str, Any]  # versions and settings, for the record

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        """The new tokens of each prompt: greedy, so many, whatever their ids. The first `shared` tokens of all prompts
        are the same; an engine that must be told so is told so here."""


def serve(make: Callable[[str, int, dict[str, str]], Engine]) -> None:
    """`make` is given the model's path, the number of threads, and settings of its own."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    engine = make(args.model, args.threads, dict(pair.split("=", 1) for pair in args.setting))
    _say(answers, engine.about)
    for line in sys.stdin:
        call = json.loads(line)
        began = time.perf_counter()
        tokens = engine.generate(call["prompts"], call["new_tokens"], call["shared"])
        _say(answers, {"seconds": time.perf_counter() - began, "tokens": tokens})


def _end_with_parent() -> None:
    """The end of standard input is not noticed by a process that is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
