"""One batch from its validation to its end.

Requests go through the server's own routes, with a priority behind all online traffic: the scheduler admits that first
and makes batch requests give way. Whatever happens to this process, each is answered once (see records.batches).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from trivium.records.batches import BatchRecord, BatchRequest, BatchStatus, TokenCounts
from trivium.records.blobs import IncomingBlob
from trivium.records.files import FileRecord
from trivium.records.records import Records
from trivium.serve.access.allowance import BatchTurn
from trivium.serve.access.caller import Caller, acting_as
from trivium.serve.access.keyring import Keyring
from trivium.serve.batch.input import LINE, BatchInputError, read_batch_input
from trivium.serve.batch.output import answer_line, failure_line, tokens_of
from trivium.serve.batch.slots import Slots
from trivium.serve.disconnect import cancel_and_wait
from trivium.serve.errors import RETRY_SECONDS
from trivium.serve.in_process import Answer, InProcess
from trivium.serve.limits import Limits
from trivium.types.request import BACKGROUND_PRIORITY

MAX_STRIKES = 2  # deaths of the engine after which a request is taken for their cause: one in company, one alone
PAGE = 256  # requests read from the records at a time

NOT_RUN = {
    BatchStatus.EXPIRED: ("batch_expired", "the completion window ended before this request was answered"),
    BatchStatus.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was answered"),
}


@dataclass(frozen=True)
class BatchTools:
    """What all batches share."""

    records: Records
    server: InProcess
    limits: Limits
    slots: Slots
    keyring: Keyring


class BatchRun:
    def __init__(self, tools: BatchTools, batch_id: str, order: int) -> None:
        """Of batches whose owners have one priority, the one with the lowest `order` gets the next slot."""
        self._tools = tools
        self._records = tools.records.batches
        self._blobs = tools.records.blobs
        self._id = batch_id
        self._order = order
        self.cancelled = asyncio.Event()

    async def to_its_end(self) -> None:
        batch = await self._read()
        if batch.status is BatchStatus.VALIDATING:
            await self._validate(batch)
            batch = await self._read()
        match batch.status:
            case BatchStatus.IN_PROGRESS:
                await self._end(batch, await self._run(batch))
            case BatchStatus.FINALIZING:
                await self._end(batch, BatchStatus.COMPLETED)
            case BatchStatus.CANCELLING:
                await self._end(batch, BatchStatus.CANCELLED)
        self._blobs.remove(self._id)

    async def _read(self) -> BatchRecord:
        batch = await self._records.get(self._id)
        assert batch is not None  # batches are never deleted
        return batch

    async def _validate(self, batch: BatchRecord) -> None:
        path, limits = self._blobs.path(self._id), self._tools.limits
        try:
            found = await asyncio.to_thread(read_batch_input, path, self._id, batch.endpoint, limits)
        except BatchInputError as error:
            await self._records.fail(self._id, error.errors)
        else:
            await self._records.begin(self._id, found.requests, found.bad_lines)

    async def _run(self, batch: BatchRecord) -> BatchStatus:
        """Until all requests are answered, the window is over, or the batch is cancelled; which of these came."""
        working = asyncio.create_task(self._answer_all(batch))
        cancelled = asyncio.create_task(self.cancelled.wait())
        try:
            await asyncio.wait(
                (working, cancelled),
                timeout=max(batch.expires_at - time.time(), 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if working.done():
                working.result()
                return BatchStatus.COMPLETED
            return BatchStatus.CANCELLED if cancelled.done() else BatchStatus.EXPIRED
        finally:
            await cancel_and_wait(working, cancelled)

    async def _answer_all(self, batch: BatchRecord) -> None:
        suspects: list[BatchRequest] = []  # the engine died with them in its hands: they run last, one at a time
        slots = self._tools.slots

        async def answer(request: BatchRequest, body: bytes, turn: BatchTurn) -> None:
            try:
                await self._answer(batch, request, body, turn)
            except _EngineDiedError:
                suspects.append(request)

        with open(self._blobs.path(self._id), "rb") as file:
            async with asyncio.TaskGroup() as group:
                async for request in self._unanswered():
                    if request.strikes:
                        suspects.append(request)
                        continue
                    body = self._body(file.fileno(), request)
                    with ExitStack() as held:
                        owner = self._owner(batch)
                        turn = await owner.batch_turn()
                        held.callback(turn.end)
                        await slots.take((owner.priority_of(None), self._order))
                        held.callback(slots.give_back)
                        task = group.create_task(answer(request, body, turn))
                        task.add_done_callback(partial(_give_back, held.pop_all()))
            for request in suspects:
                await self._answer_alone(batch, request, self._body(file.fileno(), request))

    def _owner(self, batch: BatchRecord) -> Caller:
        """Its keys may have been changed since the last request."""
        return self._tools.keyring.on_behalf_of(batch.owner)

    async def _unanswered(self) -> AsyncIterator[BatchRequest]:
        rank = -1
        while page := await self._records.unanswered(self._id, rank, PAGE):
            for rank, request in page:  # noqa: B007
                yield request

    def _body(self, descriptor: int, request: BatchRequest) -> bytes:
        line = LINE.decode(os.pread(descriptor, request.length, request.start))
        return msgspec.json.encode({**line.body, "priority": BACKGROUND_PRIORITY})

    async def _answer_alone(self, batch: BatchRecord, request: BatchRequest, body: bytes) -> None:
        while True:
            turn = await self._owner(batch).batch_turn()
            try:
                return await self._answer(batch, request, body, turn)
            except _EngineDiedError as death:
                if death.strikes >= MAX_STRIKES:
                    message = f"the engine died {death.strikes} times with this request in its hands"
                    line = failure_line(self._id, request.line, request.custom_id, "engine_dead", message)
                    return await self._records.answer(self._id, request.line, False, line, TokenCounts())
            finally:
                turn.end()

    async def _answer(self, batch: BatchRecord, request: BatchRequest, body: bytes, turn: BatchTurn) -> None:
        while True:
            with acting_as(self._owner(batch)):
                answer = await self._tools.server.post(batch.endpoint, body)
            if answer.status not in (429, 503):
                break
            if _code(answer) == "engine_dead":
                raise _EngineDiedError(await self._records.strike(self._id, request.line))
            await asyncio.sleep(float(answer.headers.get("retry-after", RETRY_SECONDS)))
        succeeded = answer.status == 200
        line = answer_line(self._id, request.line, request.custom_id, answer)
        tokens = tokens_of(answer) if succeeded else TokenCounts()
        turn.num_tokens = tokens.input + tokens.output
        await self._records.answer(self._id, request.line, succeeded, line, tokens)

    async def _end(self, batch: BatchRecord, end: BatchStatus) -> None:
        if end is BatchStatus.COMPLETED:
            await self._records.finalize(self._id)
        await self._tools.records.database.settle()  # an answer may be on its way though its task was cancelled
        output, errors = await asyncio.to_thread(self._write_files, batch, end)
        await self._records.end(self._id, end, output, errors)

    def _write_files(self, batch: BatchRecord, end: BatchStatus) -> tuple[FileRecord | None, FileRecord | None]:
        """What succeeded, and all the rest."""
        files = self._tools.records.files
        output, errors = files.incoming(), files.incoming()
        try:
            for line, custom_id, succeeded, result in self._records.results(self._id):
                if result is None:
                    result = failure_line(self._id, line, custom_id, *NOT_RUN[end])
                (output if succeeded else errors).write(result + b"\n")
            return (
                self._publish(batch, output, "output") if output.size else None,
                self._publish(batch, errors, "error") if errors.size else None,
            )
        finally:
            output.discard()
            errors.discard()

    def _publish(self, batch: BatchRecord, incoming: IncomingBlob, kind: str) -> FileRecord:
        name = f"{self._id}_{kind}.jsonl"
        return self._tools.records.files.publish(incoming, name, "batch_output", batch.output_seconds, batch.owner)


class _EngineDiedError(Exception):
    def __init__(self, strikes: int) -> None:
        super().__init__(strikes)
        self.strikes = strikes


def _give_back(held: ExitStack, _: asyncio.Task[None]) -> None:
    """When a task has ended, also where it was cancelled before it began."""
    held.close()


def _code(answer: Answer) -> str | None:
    error: dict[str, Any] = msgspec.json.decode(answer.body).get("error", {})
    return error.get("code")
