"""What is seen of a start that takes long: a bar that moves on a terminal, else a line now and then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trivium.types.start_progress import StartProgress

if TYPE_CHECKING:
    from tqdm import tqdm

SHORT_SECONDS = 2.0  # starts that take no longer need no news
BAR_SECONDS = 0.2  # between looks
LINE_SECONDS = 10.0  # between lines where there is no terminal


async def tell_start(look: Callable[[], Mapping[str, StartProgress]], say: Callable[[str], None]) -> None:
    """Until it is cancelled. `look`: how far each model's engine is, by name."""
    await asyncio.sleep(SHORT_SECONDS)
    if sys.stderr.isatty():
        await _draw_bars(look)
    while True:
        for name, progress in look().items():
            say(f"starting  {name}: {progress}")
        await asyncio.sleep(LINE_SECONDS)


async def _draw_bars(look: Callable[[], Mapping[str, StartProgress]]) -> None:
    from tqdm import tqdm

    bars: dict[str, tqdm] = {}
    try:
        while True:
            for name, progress in look().items():
                bar = bars.get(name)
                if bar is None:
                    bar = bars[name] = tqdm(unit="B", unit_scale=True, leave=False, dynamic_ncols=True)
                bar.desc = f"{name}: {progress.stage}"
                bar.total, bar.n = progress.total or None, progress.done
                bar.refresh()
            await asyncio.sleep(BAR_SECONDS)
    finally:
        for bar in bars.values():
            bar.close()
