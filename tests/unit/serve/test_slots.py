from __future__ import annotations

import asyncio

import pytest

from trivium.serve.batch.slots import Slots


def test_the_next_slot_goes_by_the_owners_priority_and_then_to_the_oldest_batch() -> None:
    async def run() -> list[tuple[int, int]]:
        slots = Slots(1)
        await slots.take((0, 0))
        got: list[tuple[int, int]] = []

        async def work(order: tuple[int, int]) -> None:
            await slots.take(order)
            got.append(order)
            slots.give_back()

        tasks = [asyncio.create_task(work(order)) for order in ((5, 1), (0, 3), (0, 2), (5, 0), (0, 2))]
        await asyncio.sleep(0)
        slots.give_back()
        await asyncio.gather(*tasks)
        return got

    assert asyncio.run(run()) == [(0, 2), (0, 2), (0, 3), (5, 0), (5, 1)]


@pytest.mark.parametrize("slot_was_handed_over", [True, False])
def test_who_stops_waiting_takes_no_slot_along(slot_was_handed_over: bool) -> None:
    async def run() -> None:
        slots = Slots(1)
        await slots.take((0, 0))
        waiting = asyncio.create_task(slots.take((0, 1)))
        await asyncio.sleep(0)
        if slot_was_handed_over:
            slots.give_back()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if not slot_was_handed_over:
            slots.give_back()
        await asyncio.wait_for(slots.take((0, 2)), 60)

    asyncio.run(run())
