"""When tokens count as handed on: with the write that tells them, or at once where nothing is written before the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trivium.observe.energy import EnergyMeter
from trivium.observe.events import Event, FirstToken, TokensHanded
from trivium.observe.request_end import RequestEnd
from trivium.serve import token_clock
from trivium.serve.models.served import ServedModel
from trivium.serve.request_times import RequestTimes
from trivium.serve.token_clock import TokenClock


class Desk:
    """A request that came at 100, its clock, and what is heard of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, streams: bool) -> None:
        self.now = 100.0
        monkeypatch.setattr(token_clock, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.heard: list[Event] = []
        model = cast(ServedModel, SimpleNamespace(name="m", emit=self.heard.append))
        self.times = RequestTimes("r", "", EnergyMeter(), None, arrived=100.0)
        self.times.streams = streams
        self.clock = TokenClock(model, "r", self.times)

    def piece(self, at: float, written: float | None, **counts: int) -> None:
        """Tokens of sequences a, b … come; the piece is written, or there is nothing in it to write."""
        self.now = at
        for name, count in counts.items():
            self.clock.came("ab".index(name), count)
        self.now = written or at
        if written is not None:
            self.times.last_write = written
        self.clock.taken()

    @property
    def told(self) -> list[Any]:
        return [
            (event.index, event.count, event.seconds) if isinstance(event, TokensHanded) else event.seconds
            for event in self.heard
            if isinstance(event, TokensHanded | FirstToken)
        ]


def test_a_stream_hands_tokens_on_when_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, streams=True)
    desk.piece(101.0, 101.5, a=1)
    desk.piece(102.0, 102.75, a=2)
    assert desk.told == [1.5, (0, 2, 1.25)]
    account = desk.times.account(RequestEnd.COMPLETE)
    assert (account.time_to_first_token, account.inter_token_latency) == (1.5, 0.625)


def test_tokens_without_text_are_handed_on_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, streams=True)
    desk.piece(101.0, None, a=1)
    assert desk.told == [], "nothing was written"
    desk.piece(102.0, 102.5, a=1)
    desk.piece(103.0, None, a=1)
    desk.piece(104.0, 104.5, a=1)
    assert desk.told == [2.5, (0, 1, 0.0), (0, 2, 2.0)]


def test_where_nothing_is_streamed_tokens_count_when_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, streams=False)
    desk.piece(101.0, None, a=1, b=1)
    desk.piece(101.5, None, b=1)
    desk.piece(102.0, None, a=1)
    assert desk.told == [1.0, (1, 1, 0.5), (0, 1, 1.0)], "each sequence has waits of its own"


def test_what_is_never_taken_was_never_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, streams=True)
    desk.clock.came(0, 3)
    assert desk.told == []
    assert desk.times.account(RequestEnd.CANCELLED).time_to_first_token is None


def test_writes_are_noted_as_they_are_made() -> None:
    times = RequestTimes("r", "", EnergyMeter(), None)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    before = times.last_write
    asyncio.run(times.timed(send)({"type": "http.response.body", "body": b"x", "more_body": True}))
    assert sent and times.last_write > before
