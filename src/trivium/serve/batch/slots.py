"""How many requests of all batches run at once, and whose turn it is: lower orders go first."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Slots:
    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[tuple[int, int], int, asyncio.Future[None]]] = []  # a heap
        self._tickets = itertools.count()

    async def take(self, order: tuple[int, int]) -> None:
        """Until there is one that nobody with a lower `order` waits for."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._tickets), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
