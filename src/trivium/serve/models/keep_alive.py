"""How long a model stays in memory after its last use, as Ollama's clients write it."""

from __future__ import annotations

import re

from trivium.types.errors import InvalidRequestError

SECONDS_OF_UNIT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
DURATION = re.compile(rf"-?(?:{PART.pattern})+")
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?")
MOST_SECONDS = 10 * 365 * 86400.0  # longer is for ever


def read_keep_alive(value: float | str) -> float | None:
    """Seconds; None: for ever, which is anything below 0. A number is seconds, a text a duration like 5m or 1h30m."""
    seconds = _seconds(value)
    return None if seconds < 0 or seconds > MOST_SECONDS else seconds


def _seconds(value: float | str) -> float:
    if not isinstance(value, str):
        return float(value)
    text = value.strip()
    if DURATION.fullmatch(text):
        total = sum(float(number) * SECONDS_OF_UNIT[unit] for number, unit in PART.findall(text))
        return -total if text.startswith("-") else total
    if NUMBER.fullmatch(text):
        return float(text)
    raise InvalidRequestError(
        f"keep_alive must be seconds or a duration like 5m or 1h30m, but is {value[:80]!r}", param="keep_alive"
    )
