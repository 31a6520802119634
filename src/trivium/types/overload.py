"""How full an engine's queue is, and what is done about it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Grade(StrEnum):
    """Each does what those before it do, and more."""

    OPEN = "open"  # nobody waits for a row
    BUSY = "busy"  # somebody does: requests of batches are put off
    CROWDED = "crowded"  # half of the places are taken: so are requests for several answers, and with long prompts
    FULL = "full"  # the places left are for those who were told to come now: all others are put off
    SHUT = "shut"  # there is no place at all

    @property
    def level(self) -> int:
        return [*Grade].index(self)


class PutOff(StrEnum):
    """Why a request was told to come back later."""

    BATCH = "batch"  # somebody waits for a row who is no batch
    SEVERAL_ANSWERS = "several_answers"
    LONG_PROMPT = "long_prompt"
    NEWCOMER = "newcomer"  # places were left, for those who were told to come
    QUEUE = "queue"  # none was left
    FIRST_TOKEN = "first_token"  # it would have come too late


class AdmissionStats(Struct, frozen=True):
    grade: Grade = Grade.OPEN
    waiting: int = 0  # sequences, for a row
    max_waiting: int = 0
    appointments: int = 0  # times that the refused were given, and that were neither kept nor missed yet
    kept: int = 0
    missed: int = 0
    put_off: dict[PutOff, int] = {}  # requests, by the reason
