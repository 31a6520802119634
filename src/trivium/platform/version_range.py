"""Ranges of versions as pip writes them: ">=2.11,<2.14". Only what a table of requirements needs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_PART = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*([0-9.]+)\s*")


def is_within(version: str, wanted: str) -> bool:
    """Compares the numbers at a version's beginning: of "2.11.0+cpu" 2, 11 and 0. An empty range holds all."""
    if not wanted:
        return True
    found = _numbers(version)
    for part in wanted.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a part of a range such as >=2.11,<2.14")
        limit = _numbers(match[2])
        width = max(len(found), len(limit))
        if not _COMPARE[match[1]](_padded(found, width), _padded(limit, width)):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version.strip())
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
