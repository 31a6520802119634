from __future__ import annotations

import logging

import pytest

from trivium.engine.overload_log import OverloadLog
from trivium.types.overload import AdmissionStats, Grade, PutOff


def test_each_grade_of_an_overload_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told = OverloadLog()
    course = [Grade.BUSY, Grade.CROWDED, Grade.SHUT, Grade.CROWDED, Grade.SHUT, Grade.FULL, Grade.BUSY, Grade.OPEN]
    for number, grade in enumerate([*course, Grade.BUSY, Grade.OPEN, Grade.CROWDED]):
        told.hear(AdmissionStats(grade, waiting=5, max_waiting=8, put_off={PutOff.QUEUE: number}))
    assert [record.getMessage() for record in caplog.records] == [
        "overload: crowded, 5 of 8 places in the queue are taken; requests for several answers and with long prompts"
        " are put off",
        "overload: shut, 5 of 8 places in the queue are taken; every request is put off",
        "overload is over; 7 requests were put off",
        "overload: crowded, 5 of 8 places in the queue are taken; requests for several answers and with long prompts"
        " are put off",
    ]
