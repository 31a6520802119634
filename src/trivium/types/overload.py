"""How full an engine's queue is, and what is done about it."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class Grade(IntEnum):
    """Each does what those before it do, and more."""

    OPEN = 0  # nobody waits for a row
    BUSY = 1  # somebody does: requests of batches are put off
    CROWDED = 2  # half of the places are taken: requests for several answers, and those with long prompts, are put off
    FULL = 3  # the places left are for those who were told to come now: all others are put off
    SHUT = 4  # there is no place at all

    @property
    def label(self) -> str:
        return self.name.lower()


class AdmissionStats(Struct, frozen=True):
    grade: Grade = Grade.OPEN
    appointments: int = 0  # times that were given, and that have neither been kept nor missed
    kept: int = 0
    missed: int = 0
    put_off: dict[str, int] = {}  # requests, by the reason
