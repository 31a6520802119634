"""Which platform runs. The CPU is the last resort and always answers."""

from __future__ import annotations

from trivium.platform.contract import Platform
from trivium.platform.cpu import CpuPlatform


def select_platform() -> Platform:
    return CpuPlatform()
