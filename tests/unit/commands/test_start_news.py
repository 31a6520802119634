"""Who waits for a long start sees how far it is."""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress

import pytest

from trivium.commands import start_news
from trivium.types.start_progress import StartProgress, StartStage

HALF = {"big": StartProgress(StartStage.WEIGHTS, done=8 * 10**9, total=16 * 10**9)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def watched(says: list[str], looks: int) -> None:
    """The news, until somebody has looked so often."""
    seen = asyncio.Event()
    num_looks = 0

    def look() -> dict[str, StartProgress]:
        nonlocal num_looks
        num_looks += 1
        if num_looks == looks:
            seen.set()
        return HALF

    telling = asyncio.create_task(start_news.tell_start(look, says.append))
    await seen.wait()
    await asyncio.sleep(0)
    telling.cancel()
    with suppress(asyncio.CancelledError):
        await telling


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_news, "SHORT_SECONDS", 0)
    monkeypatch.setattr(start_news, "LINE_SECONDS", 0)
    monkeypatch.setattr(start_news, "BAR_SECONDS", 0)


def test_where_nobody_watches_a_line_is_written_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    says: list[str] = []
    asyncio.run(watched(says, looks=2))
    assert len(says) >= 2
    assert set(says) == {"starting  big: reading weights: 8.00 of 16.00 GB"}


def test_on_a_terminal_a_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    says: list[str] = []
    asyncio.run(watched(says, looks=3))
    assert "big: reading weights:  50%" in terminal.getvalue()
    assert "8.00G/16.0G" in terminal.getvalue()
    assert not says
