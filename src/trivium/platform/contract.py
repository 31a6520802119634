"""What a platform states. Platforms state facts; the engine decides."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from trivium.types.facts import Capabilities


class Detection(Struct, frozen=True):
    present: bool
    reason: str


class Platform(Protocol):
    name: str

    def detect(self) -> Detection:
        """Is it here? Without initialising a device."""

    def capabilities(self) -> Capabilities: ...

    def open(self, num_threads: int) -> None:
        """Take the device for this process."""

    def give_back_unused(self) -> None:
        """Memory that this process keeps for reuse goes back to the device, so that what is free can be read."""
