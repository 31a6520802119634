"""Which platform runs. The CPU is the last resort and always answers."""

from __future__ import annotations

from trivium.platform.contract import Platform
from trivium.platform.cpu import CpuPlatform
from trivium.platform.cuda import CudaPlatform
from trivium.types.errors import ConfigError

# In the order in which `auto` tries them.
PLATFORMS: tuple[Platform, ...] = (CudaPlatform(), CpuPlatform())


def select_platform(device: str = "auto") -> Platform:
    """`device` is a platform's name, or "auto": the first that is here."""
    if device == "auto":
        return next(platform for platform in PLATFORMS if platform.detect().present)
    named = {platform.name: platform for platform in PLATFORMS}
    if device not in named:
        raise ConfigError(f"device {device!r} is none of auto, {', '.join(named)}")
    platform = named[device]
    if not (found := platform.detect()).present:
        raise ConfigError(f"device {device} was asked for, but {found.reason}")
    return platform
