"""Plugins register, they do not patch: what the core consists of is noted before one is loaded, and compared after."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from trivium.types.errors import ConfigError

CORE = "trivium"


class CoreGuard:
    """Everything that the core's modules and classes hold by name, as it was when the guard was made."""

    def __init__(self) -> None:
        self._held = dict(_symbols())
        self._modules = {name for name, _ in _core_modules()}

    def check(self, plugin: str, package: str) -> None:
        """Raises ConfigError where a name of the core now holds something else. `package`: the plugin's own."""
        now = dict(_symbols())
        changed = [name for name, value in self._held.items() if name in now and now[name] is not value]
        changed += [name for name in self._held if name not in now]
        # Modules that were loaded since: what is in them must not come from the plugin.
        changed += [
            name
            for name, value in now.items()
            if name not in self._held and getattr(value, "__module__", None) and _is_of(value.__module__, package)
        ]
        if changed:
            others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise ConfigError(
                f"the platform plugin {plugin!r} changed {sorted(changed)[0]}{others}: plugins register, they do not patch"
            )


def _is_of(module: object, package: str) -> bool:
    return isinstance(module, str) and (module == package or module.startswith(f"{package}."))


def _core_modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        if (name == CORE or name.startswith(f"{CORE}.")) and isinstance(module, ModuleType):
            yield name, module


def _symbols() -> Iterator[tuple[str, Any]]:
    for module_name, module in _core_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            yield f"{module_name}.{name}", value
            if isinstance(value, type) and value.__module__ == module_name:
                for member, held in list(vars(value).items()):
                    if not member.startswith("__") or callable(held):
                        yield f"{module_name}.{name}.{member}", held
