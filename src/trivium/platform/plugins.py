"""Platforms that other packages bring: found by their metadata, and only the chosen one is imported."""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from inspect import isfunction

from trivium.platform.contract import SERVED_VERSIONS, ImportedFacts, Platform, RunningFacts, StaticFacts
from trivium.platform.contract_v1 import VERSION as VERSION_1
from trivium.platform.contract_v1 import AdaptedV1, PlatformV1
from trivium.platform.core_guard import CoreGuard
from trivium.platform.plausible import what_is_impossible
from trivium.platform.version_range import is_within
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities

GROUP = "trivium.platforms"


def installed_plugins() -> dict[str, metadata.EntryPoint]:
    """By name; nothing is imported. A name that two packages claim belongs to neither."""
    found = metadata.entry_points(group=GROUP)
    counts = Counter(entry.name for entry in found)
    return {entry.name: entry for entry in found if counts[entry.name] == 1}


def load_plugin(entry: metadata.EntryPoint) -> Platform:
    """Imports it. Raises ConfigError where it throws, patches the core, or was made for another contract or core."""
    package = entry.value.partition(":")[0].partition(".")[0]
    guard = CoreGuard()
    try:
        made = entry.load()()
    except Exception as error:
        raise ConfigError(
            f"the platform plugin {entry.name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    guard.check(entry.name, package)
    plugin_version = entry.dist.version if entry.dist is not None else "?"
    version = getattr(made, "contract_version", VERSION_1)
    if version not in SERVED_VERSIONS:
        served = " and ".join(map(str, SERVED_VERSIONS))
        raise ConfigError(
            f"the platform plugin {entry.name!r} {plugin_version} speaks contract {version}, and {served} are served"
        )
    _check_whole(entry.name, made, PlatformV1 if version == VERSION_1 else Platform)
    platform: Platform = AdaptedV1(made, plugin_version) if version == VERSION_1 else made
    if platform.name != entry.name:
        raise ConfigError(f"the platform plugin {entry.name!r} calls itself {platform.name!r}")
    _check_answers(entry.name, platform)
    _check_core_range(entry.name, platform)
    return platform


def _check_whole(name: str, made: object, contract: type) -> None:
    methods = [method for method, value in vars(contract).items() if isfunction(value) and not method.startswith("_")]
    missing = [method for method in ["name", *methods] if not hasattr(made, method)]
    if missing:
        raise ConfigError(
            f"the platform plugin {name!r} has no {', '.join(missing)}, which the contract that it speaks asks for"
        )


def _check_answers(name: str, platform: Platform) -> None:
    """What can be asked without a model is asked once, so that a plugin that cannot answer is never chosen."""
    asked: tuple[tuple[str, type], ...] = (
        ("static", StaticFacts),
        ("imported", ImportedFacts),
        ("capabilities", Capabilities),
        ("running", RunningFacts),
    )
    for method, kind in asked:
        try:
            answer = getattr(platform, method)()
        except Exception as error:
            raise ConfigError(
                f"the platform plugin {name!r} failed when asked for {method}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(answer, kind):
            raise ConfigError(f"the platform plugin {name!r} answered {method} with a {type(answer).__name__}")
    if problem := what_is_impossible(platform.capabilities()):
        raise ConfigError(f"the platform plugin {name!r} cannot be believed: {problem}")


def _check_core_range(name: str, platform: Platform) -> None:
    versions = platform.static().versions.value
    if versions is None or not versions.core:
        return
    try:
        ours = metadata.version("trivium")
    except metadata.PackageNotFoundError:
        return
    if not is_within(ours, versions.core):
        raise ConfigError(
            f"the platform plugin {name!r} was made for trivium {versions.core}, and this is {ours}: install the pair"
        )
