"""Where the time of a start went is known stage by stage."""

from __future__ import annotations

from trivium.types.start_progress import StagePassed, StartClock, StartProgress, StartStage


def test_a_stage_lasts_until_the_next_is_told_and_the_last_until_somebody_asks() -> None:
    times = iter([10.0, 12.5, 13.0])
    told: list[StartProgress] = []
    clock = StartClock(told.append, now=lambda: next(times))
    news = [
        StartProgress(StartStage.PLANNING),
        StartProgress(StartStage.WEIGHTS, 1, 3),
        StartProgress(StartStage.WEIGHTS, 3, 3),
    ]
    for progress in news:
        clock(progress)
    assert told == news
    assert clock.passed() == (StagePassed(StartStage.PLANNING, 2.5), StagePassed(StartStage.WEIGHTS, 0.5))
