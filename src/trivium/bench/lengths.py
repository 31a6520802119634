"""How long prompts and answers are, in tokens."""

from __future__ import annotations

import math
import random
from typing import Literal, NamedTuple

LengthKind = Literal["fixed", "uniform", "sharegpt"]

# Means of ShareGPT conversations as the PagedAttention paper gives them (its figure 11). The spread is what the logarithms
# of lengths in Azure's public conversation trace have, about 1 for prompts and for answers.
SHAREGPT_PROMPT_MEAN = 161.3
SHAREGPT_OUTPUT_MEAN = 338.0
LOG_SPREAD = 1.0
UNIFORM_SPREAD = 0.5  # uniform lengths lie within this share of the mean, either way


class Lengths(NamedTuple):
    prompt: int
    output: int


def draw_lengths(kind: LengthKind, prompt: int, output: int, count: int, rng: random.Random) -> list[Lengths]:
    """`prompt` and `output` are means, and are not used by `sharegpt`, which has its own."""
    match kind:
        case "fixed":
            return [Lengths(prompt, output)] * count
        case "uniform":
            return [Lengths(_uniform(prompt, rng), _uniform(output, rng)) for _ in range(count)]
        case "sharegpt":
            means = (SHAREGPT_PROMPT_MEAN, SHAREGPT_OUTPUT_MEAN)
            return [Lengths(*(_log_normal(mean, rng) for mean in means)) for _ in range(count)]


def _uniform(mean: int, rng: random.Random) -> int:
    return max(1, rng.randint(round(mean * (1 - UNIFORM_SPREAD)), round(mean * (1 + UNIFORM_SPREAD))))


def _log_normal(mean: float, rng: random.Random) -> int:
    return max(1, round(rng.lognormvariate(math.log(mean) - LOG_SPREAD**2 / 2, LOG_SPREAD)))
