"""Every environment variable that begins with TRIVIUM_: what it means, and a word to those who mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from trivium.types.errors import ConfigError

PREFIX = "TRIVIUM_"


class EnvironmentVariable(Struct, frozen=True):
    name: str
    meaning: str


KNOWN = (
    EnvironmentVariable("TRIVIUM_HOME", "where models and what is made of them are kept; default: in ~/.cache"),
    EnvironmentVariable("TRIVIUM_API_KEY", "a key that requests to the server must carry"),
    EnvironmentVariable("TRIVIUM_FAULTS", "a file that says which faults are let loose on purpose; for tests"),
)


def check_environment(environ: Mapping[str, str], plugins: Callable[[], Iterable[str]]) -> None:
    """Raises ConfigError by the name of a variable that nobody reads.

    `plugins` tells the names of those installed, if need be: what begins with TRIVIUM_<NAME>_ is theirs to check.
    """
    known = [variable.name for variable in KNOWN]
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    theirs = tuple(prefix_of(name) for name in plugins()) if unknown else ()
    for name in unknown:
        if not name.startswith(theirs):
            raise ConfigError(_unknown(name, known))


def check_plugin_environment(environ: Mapping[str, str], plugin: str, known: Iterable[str]) -> None:
    """Of the plugin that was chosen; `known` are the variables that it declares."""
    names = [*known]
    for name in sorted(environ):
        if name.startswith(prefix_of(plugin)) and name not in names:
            raise ConfigError(_unknown(name, names))


def prefix_of(plugin: str) -> str:
    return f"{PREFIX}{plugin.upper().replace('-', '_')}_"


def _unknown(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known) or 'none'}"
    return f"the environment variable {name} is read by nobody: {hint}"
