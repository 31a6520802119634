"""Sends the requests of a run: by a schedule whatever the answers do (open loop), or so many at a time (closed loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from trivium.bench.client import OpenAIClient, PlannedRequest
from trivium.bench.samples import RequestSample


class Watcher(Protocol):
    """Told of each request as it goes and as it ends."""

    def sent(self) -> None: ...

    def ended(self, sample: RequestSample) -> None: ...


async def open_loop(
    client: OpenAIClient, plan: Sequence[PlannedRequest], run: int, watcher: Watcher
) -> list[RequestSample]:
    """Each request is sent at its own time; how many are under way, and how long they take, delays none."""
    origin = time.monotonic_ns()

    async def send(request: PlannedRequest, body: bytes) -> RequestSample:
        watcher.sent()
        sample = await client.send(request, body, run, origin, request.at_ns)
        watcher.ended(sample)
        return sample

    async with asyncio.TaskGroup() as group:
        tasks = []
        for request in plan:
            body = client.encode(request)  # before its time; not all at once, for a long trace has gigabytes of text
            await _sleep_until(origin + request.at_ns)
            tasks.append(group.create_task(send(request, body)))
    return [task.result() for task in tasks]


async def closed_loop(
    client: OpenAIClient, plan: Sequence[PlannedRequest], run: int, concurrency: int, watcher: Watcher
) -> list[RequestSample]:
    """As many clients as `concurrency`, each of which asks again as soon as it has its answer."""
    waiting = iter(plan)
    samples: list[RequestSample] = []
    origin = time.monotonic_ns()

    async def ask_again_and_again() -> None:
        for request in waiting:
            body = client.encode(request)
            watcher.sent()
            sample = await client.send(request, body, run, origin, time.monotonic_ns() - origin)
            watcher.ended(sample)
            samples.append(sample)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(plan))):
            group.create_task(ask_again_and_again())
    return sorted(samples, key=lambda sample: sample.index)


async def _sleep_until(moment_ns: int) -> None:
    while (left := moment_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(left / 1e9)
