"""Whose records somebody may see: their own, or everybody's."""

from __future__ import annotations

from msgspec import Struct

# For rows of tables with an owner; its values are those of a Viewer.
IN_SIGHT = "(? OR owner = ?)"


class Viewer(Struct, frozen=True):
    """Also the owner of what it makes."""

    name: str = ""
    sees_all: bool = True

    @property
    def values(self) -> tuple[bool, str]:
        return self.sees_all, self.name


EVERYBODY = Viewer()
