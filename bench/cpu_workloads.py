"""What is measured on a CPU, and what must hold. Prompts are random token ids, new at each call of `measure`, so that
no engine finds a prefix that it was not meant to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from engine_process import EngineProcess

CAPITAL = [504, 3575, 282, 4649, 314]  # "The capital of France is", in SmolLM2's tokens


@dataclass(frozen=True)
class Must:
    """`times`: as good as the best peer so many times over. `at_most`: in the workload's unit."""

    times: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Workload:
    name: str
    unit: str
    higher_is_better: bool
    must: Must
    measure: Callable[[EngineProcess, random.Random], float]

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times as good as theirs ours is."""
        return ours / theirs if self.higher_is_better else theirs / ours


def random_ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(1000, 40000) for _ in range(count)]


def decode(prompt: int, new: int) -> Callable[[EngineProcess, random.Random], float]:
    """Tokens a second after the first."""

    def measure(engine: EngineProcess, draw: random.Random) -> float:
        first, _ = engine.generate([random_ids(draw, prompt)], 1)
        whole, _ = engine.generate([random_ids(draw, prompt)], new)
        return (new - 1) / (whole - first)

    return measure


def prefill(prompt: int) -> Callable[[EngineProcess, random.Random], float]:
    """Prompt tokens a second until the first new one."""

    def measure(engine: EngineProcess, draw: random.Random) -> float:
        seconds, _ = engine.generate([random_ids(draw, prompt)], 1)
        return prompt / seconds

    return measure


def crowd(requests: int, prompt: int, new: int) -> Callable[[EngineProcess, random.Random], float]:
    """New tokens a second of requests that come at once."""

    def measure(engine: EngineProcess, draw: random.Random) -> float:
        seconds, _ = engine.generate([random_ids(draw, prompt) for _ in range(requests)], new)
        return requests * new / seconds

    return measure


def shared_prefix(requests: int, shared: int, own: int, new: int) -> Callable[[EngineProcess, random.Random], float]:
    """Seconds for requests that come at once and begin alike."""

    def measure(engine: EngineProcess, draw: random.Random) -> float:
        prefix = random_ids(draw, shared)
        seconds, _ = engine.generate([prefix + random_ids(draw, own) for _ in range(requests)], new, shared)
        return seconds

    return measure


WORKLOADS = (
    Workload("a: one request, 32 in, 128 out", "tokens/s", True, Must(times=1.2), decode(32, 128)),
    Workload("b: prefill of 512", "tokens/s", True, Must(times=1.5), prefill(512)),
    Workload("b: prefill of 2,048", "tokens/s", True, Must(times=1.5), prefill(2048)),
    Workload("c: 16 at once, 128 in, 64 out", "tokens/s", True, Must(times=2.0), crowd(16, 128, 64)),
    Workload("c: 32 at once, 128 in, 64 out", "tokens/s", True, Must(times=2.0), crowd(32, 128, 64)),
    Workload("d: 32 that share 1,024, 32 more, 32 out", "s", False, Must(times=2.0), shared_prefix(32, 1024, 32, 32)),
)


def _first_token(engine: EngineProcess, draw: random.Random) -> float:
    engine.generate([CAPITAL], 1)
    return engine.seconds_alive()


def _peak_memory(engine: EngineProcess, draw: random.Random) -> float:
    return engine.peak_bytes() / 1e6


START = Workload("process start to first token", "s", False, Must(at_most=3.0), _first_token)
MEMORY = Workload("peak resident memory over a to d", "MB", False, Must(at_most=800.0), _peak_memory)

# On shapes of larger models.
SHAPE_DECODE = Workload("decode, 32 in, 64 out", "tokens/s", True, Must(times=1.1), decode(32, 64))
SHAPE_PREFILL = Workload("prefill of 512", "tokens/s", True, Must(times=3.0), prefill(512))
