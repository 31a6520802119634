"""Command lines as they may be kept: without the keys of APIs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

SECRET = "(not kept)"
NESTED = ("--server-options", "--a-options", "--b-options")  # hold command lines of their own
SHORTEST = len("--a-o")


def without_keys(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    flag = ""  # whose value comes next
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if _hides(flag):
            kept.append(_shown(flag, argument))
            flag = ""
        elif equals and _hides(name):
            kept.append(f"{name}={_shown(name, value)}")
        else:
            kept.append(argument)
            flag = argument
    return kept


def _hides(flag: str) -> bool:
    return _is_nested(flag) or (flag.startswith("--api") and flag != "--api-key-file")


def _is_nested(flag: str) -> bool:
    """Flags may be shortened on a command line."""
    return len(flag) >= SHORTEST and any(name.startswith(flag) for name in NESTED)


def _shown(flag: str, value: str) -> str:
    return shlex.join(without_keys(shlex.split(value))) if _is_nested(flag) else SECRET
