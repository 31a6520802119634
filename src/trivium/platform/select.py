"""Which platform runs. The CPU is the last resort and always answers."""

from __future__ import annotations

import logging

from msgspec import Struct

from trivium.platform.contract import Detection, DetectionState, Platform
from trivium.platform.cpu import CpuPlatform
from trivium.platform.cuda import CudaPlatform
from trivium.platform.plugins import installed_plugins, load_plugin
from trivium.platform.probe import ask_in_child
from trivium.types.errors import ConfigError

log = logging.getLogger(__name__)

# In the order in which `auto` tries them, after plugins: who installs one wants it used.
IN_TREE: tuple[Platform, ...] = (CudaPlatform(), CpuPlatform())
AUTO = "auto"


class Considered(Struct, frozen=True):
    name: str
    detection: Detection


class Selection(Struct, frozen=True):
    platform: Platform
    considered: tuple[Considered, ...]  # in order; the chosen one last


def select_platform(device: str = AUTO) -> Selection:
    """`device` is a platform's name, or "auto": the first that is here. Of plugins only the chosen one is imported."""
    return _first_present() if device == AUTO else _named(device)


def platform_names() -> list[str]:
    return [*(platform.name for platform in IN_TREE), *_plugin_names()]


def is_in_tree(name: str) -> bool:
    return any(platform.name == name for platform in IN_TREE)


def load_platform(name: str) -> Platform:
    """In this process, here or not."""
    for platform in IN_TREE:
        if platform.name == name:
            return platform
    if name not in _plugin_names():
        raise ConfigError(f"device {name!r} is none of {', '.join([AUTO, *platform_names()])}")
    return load_plugin(installed_plugins()[name])


def _plugin_names() -> list[str]:
    taken = {AUTO, *(platform.name for platform in IN_TREE)}
    return sorted(installed_plugins().keys() - taken)


def _first_present() -> Selection:
    considered: list[Considered] = []
    chosen: Platform | None = None
    for name in _plugin_names():
        considered.append(Considered(name, _detect_plugin(name)))
        if considered[-1].detection.state is DetectionState.BROKEN:
            log.warning("the platform %s is skipped: %s", name, considered[-1].detection.reason)
    if present := [one.name for one in considered if one.detection.present]:
        if len(present) > 1:
            raise ConfigError(f"several platforms are here, {', '.join(present)}: choose one with --device")
        try:
            chosen = load_platform(present[0])
        except ConfigError as error:
            log.warning("the platform %s is skipped: %s", present[0], error)
            broken = Considered(present[0], Detection(DetectionState.BROKEN, str(error)))
            considered = [broken if one.name == present[0] else one for one in considered]
    for platform in IN_TREE if chosen is None else ():
        considered.append(Considered(platform.name, platform.detect()))
        if considered[-1].detection.present:
            chosen = platform
            break
    assert chosen is not None, "the CPU is always here"
    considered.sort(key=lambda one: one.name == chosen.name)
    return Selection(chosen, tuple(considered))


def _named(name: str) -> Selection:
    detection = _detect_plugin(name) if name in _plugin_names() else load_platform(name).detect()
    if not detection.present:
        raise ConfigError(f"device {name} was asked for, but {detection.reason}")
    return Selection(load_platform(name), (Considered(name, detection),))


def _detect_plugin(name: str) -> Detection:
    asked = ask_in_child(name, "detect")
    if asked.answer is None:
        return Detection(DetectionState.BROKEN, f"the platform plugin {name!r} {asked.failure}")
    found: Detection = asked.answer
    return found
