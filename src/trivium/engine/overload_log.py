"""Tells of an overload in the log: each grade once as it is reached, and the end. A queue that breathes is no news."""

from __future__ import annotations

import logging

from trivium.types.overload import AdmissionStats, Grade

log = logging.getLogger(__name__)

ACTIONS = {
    Grade.CROWDED: "requests for several answers and with long prompts are put off",
    Grade.FULL: "only who was told to come now is let in",
    Grade.SHUT: "every request is put off",
}


class OverloadLog:
    def __init__(self) -> None:
        self._worst = Grade.OPEN  # since the queue was last empty
        self._put_off_before = 0  # requests

    def hear(self, stats: AdmissionStats) -> None:
        grade = stats.grade
        if grade is Grade.OPEN:
            if self._worst is not Grade.OPEN:
                put_off = sum(stats.put_off.values())
                log.info("overload is over; %d requests were put off", put_off - self._put_off_before)
                self._put_off_before = put_off
            self._worst = Grade.OPEN
        elif grade in ACTIONS and grade.level > self._worst.level:
            log.warning(
                "overload: %s, %d of %d places in the queue are taken; %s",
                grade,
                stats.waiting,
                stats.max_waiting,
                ACTIONS[grade],
            )
            self._worst = grade
