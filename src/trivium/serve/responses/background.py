"""Responses that are made while nobody waits: each in a task, its events kept for those who come to hear them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

import msgspec
from msgspec.structs import replace

from trivium.records.claims import Claim
from trivium.records.records import Records
from trivium.records.responses import StoredResponse
from trivium.serve.access.caller import asking
from trivium.serve.disconnect import cancel_and_wait
from trivium.serve.errors import ApiError
from trivium.serve.responses.making import ResponseMaker, frame
from trivium.serve.responses.protocol import Event, ResponseError, ResponseObject
from trivium.serve.state import ServerState
from trivium.types.errors import StorageError

logger = logging.getLogger("trivium.serve")

STORED = msgspec.json.Decoder(ResponseObject)
UNFINISHED = ("queued", "in_progress")


async def start_in_background(state: ServerState, maker: ResponseMaker, leases: AsyncExitStack) -> BackgroundResponse:
    """`leases`: of the response's model, which are its own from now on."""
    response_id = maker.response.id
    claim = state.records.claims.take(response_id)
    assert claim is not None  # the id is new
    await maker.keep_input()
    background = BackgroundResponse(state, maker, claim, leases.pop_all())
    state.background[response_id] = background
    background.task.add_done_callback(lambda _: state.background.pop(response_id, None))
    return background


async def end_background(state: ServerState) -> None:
    """Until those under way have ended, which they do once the engine has."""
    await asyncio.gather(*(background.task for background in state.background.values()))


async def fail_abandoned(records: Records) -> None:
    """Tell of responses whose server was killed that they will not come."""
    for stored in await records.responses.unfinished():
        claim = records.claims.take(stored.id)
        if claim is None:  # another server is at work on it
            continue
        error = ResponseError("server_error", "the server ended while it made this response")
        response = replace(STORED.decode(stored.object), status="failed", error=error)
        await records.responses.change(StoredResponse(stored.id, "failed", msgspec.json.encode(response)))
        claim.retire()
        claim.give_back()


class BackgroundResponse:
    def __init__(self, state: ServerState, maker: ResponseMaker, claim: Claim, leases: AsyncExitStack) -> None:
        self._state = state
        self._maker = maker
        self._claim = claim
        self._leases = leases
        self._news = asyncio.Event()
        # Each at its sequence number.
        self._frames = [frame(event) for event in (*maker.writer.created(), *maker.writer.queued())]
        self._has_ended = False
        self.owner = asking().name
        self.task = asyncio.create_task(self._make())

    @property
    def response(self) -> ResponseObject:
        return self._maker.response

    async def frames(self, first: int) -> AsyncGenerator[bytes]:
        """From a sequence number on, those that there are and those that come."""
        while True:
            while first < len(self._frames):
                yield self._frames[first]
                first += 1
            if self._has_ended:
                return
            await self._news.wait()

    async def cancel(self) -> ResponseObject:
        await cancel_and_wait(self.task)
        return self.response

    async def _make(self) -> None:
        maker = self._maker
        try:
            async with self._state.request(self.response.id):
                with asking().place():
                    async with aclosing(maker.events()) as batches:
                        async for events in batches:
                            await self._publish(events)
        except asyncio.CancelledError:
            maker.writer.cancelled()
            await self._publish([])
        except ApiError:
            await self._publish(maker.failure_events)
        finally:
            await self._leases.aclose()
            self._claim.retire()
            self._claim.give_back()
            self._has_ended = True
            self._wake()

    async def _publish(self, events: Sequence[Event]) -> None:
        """The last events are told once the response is in the records: who hears them can go on from there."""
        frames = [frame(event) for event in events]
        if self.response.status not in UNFINISHED:
            try:
                await self._maker.keep([*self._frames, *frames])
            except StorageError as error:
                logger.error("response %s could not be kept: %s", self.response.id, error)
        self._frames += frames
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
