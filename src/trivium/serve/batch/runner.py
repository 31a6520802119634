"""Finds batches that have not ended, in whatever state the last server left them, and runs them to their end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from dataclasses import dataclass

from trivium.faults import fault_point
from trivium.records.batches import BatchRecord, BatchStatus
from trivium.serve.batch.run import BatchRun, BatchTools
from trivium.serve.disconnect import cancel_and_wait
from trivium.types.errors import StorageError

log = logging.getLogger("trivium.serve")

LOOK_SECONDS = 2.0  # between looks for what other processes changed in the records
CLEAN_UP_SECONDS = 3600.0
FIRST_RETRY_SECONDS = (
    1.0  # before a batch whose run failed in a way that nobody foresaw is tried again; doubles with each
)
RETRY_SECONDS = 30.0  # at most


@dataclass(frozen=True)
class _Running:
    run: BatchRun
    task: asyncio.Task[None]


class BatchRunner:
    def __init__(self, tools: BatchTools, model: str, news: asyncio.Event) -> None:
        """Runs batches made for `model`; `news` is set where this process changed a batch."""
        self._tools = tools
        self._model = model
        self._news = news
        self._running: dict[str, _Running] = {}
        self._order = itertools.count()
        self._num_failures: Counter[str] = Counter()  # of batches, by id

    async def run(self) -> None:
        """Until it is cancelled. Requests under way are then given up; whoever takes up the batch runs them again."""
        next_clean_up = time.monotonic()
        try:
            while True:
                self._news.clear()
                try:
                    await self._look()
                    if time.monotonic() >= next_clean_up:
                        await self._tools.records.clean_up()
                        next_clean_up = time.monotonic() + CLEAN_UP_SECONDS
                except StorageError as error:
                    log.error("batches wait: %s", error)
                except Exception:
                    log.exception("batches wait, for a reason that nobody foresaw")
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    pass
        finally:
            await cancel_and_wait(*(running.task for running in self._running.values()))

    async def _look(self) -> None:
        """Takes up batches that nobody runs, and tells those that run of their cancelling."""
        fault_point("batches.look")
        self._running = {batch_id: running for batch_id, running in self._running.items() if not running.task.done()}
        for batch in await self._tools.records.batches.unfinished(self._model):
            running = self._running.get(batch.id)
            if running is not None:
                if batch.status is BatchStatus.CANCELLING:
                    running.run.cancelled.set()
                continue
            run = BatchRun(self._tools, batch.id, next(self._order))
            self._running[batch.id] = _Running(run, asyncio.create_task(self._run_claimed(batch, run)))

    async def _run_claimed(self, batch: BatchRecord, run: BatchRun) -> None:
        claim = self._tools.records.claims.take(batch.id)
        if claim is None:  # another process runs it
            return
        try:
            fault_point("batches.run")
            await run.to_its_end()
            claim.retire()
        except Exception:
            log.exception("batch %s failed in a way that nobody foresaw, and is tried again", batch.id)
            seconds = min(FIRST_RETRY_SECONDS * 2 ** self._num_failures[batch.id], RETRY_SECONDS)
            self._num_failures[batch.id] += 1
            await asyncio.sleep(seconds)
        finally:
            claim.give_back()
