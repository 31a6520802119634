"""Platforms that other packages bring: found by their metadata, and only the chosen one is imported."""

from __future__ import annotations

from collections import Counter
from importlib import metadata

from trivium.platform.contract import SERVED_VERSIONS, Platform
from trivium.platform.contract_v1 import VERSION as VERSION_1
from trivium.platform.contract_v1 import AdaptedV1
from trivium.platform.core_guard import CoreGuard
from trivium.platform.version_range import is_within
from trivium.types.errors import ConfigError

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
    platform: Platform = AdaptedV1(made, plugin_version) if version == VERSION_1 else made
    if platform.name != entry.name:
        raise ConfigError(f"the platform plugin {entry.name!r} calls itself {platform.name!r}")
    _check_core_range(entry.name, platform)
    return platform


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
