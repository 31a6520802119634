"""A request under way, as its client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from trivium.engine.admission import Admission
from trivium.types.account import Account
from trivium.types.delta import Delta
from trivium.types.errors import TriviumError
from trivium.types.request import Request


class RequestStream:
    """The deltas of one request, in order. Closing it before its end cancels the request."""

    def __init__(self, request: Request, admission: Admission, cancel: Callable[[str, int | None], None]) -> None:
        """`cancel`: tells the engine, by id, that a sequence or all of the request (None) is not wanted any more."""
        self.request = request
        self._cancel = cancel
        self._admission = admission
        admission.sent(request)
        self._arrived: list[Delta] = []
        self._open = set(range(request.n))  # sequences whose last delta has not come, and that were not cancelled
        self._error: TriviumError | None = None
        self.closed = False
        self._wake: asyncio.Event = asyncio.Event()
        self._wake_at_end_only = False
        self._unended = set(range(request.n))  # sequences that the engine still holds
        self.ended: asyncio.Event = asyncio.Event()  # the engine holds nothing of it any more
        self.accounts: list[Account] = []  # of sequences that ended, also of those that nobody wants any more

    async def batch(self) -> list[Delta]:
        """All deltas that wait, at least one; none once the request has ended. Raises what ended it, if something did."""
        while not self._arrived and self._open and self._error is None and not self.closed:
            self._wake.clear()
            try:
                await self._wake.wait()
            except asyncio.CancelledError:
                self.close()
                raise
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            return arrived
        if self._error is not None:
            raise self._error
        return []

    async def rest(self) -> list[Delta]:
        """All deltas to the end, waking up once."""
        self._wake_at_end_only = True
        deltas: list[Delta] = []
        while batch := await self.batch():
            deltas += batch
        return deltas

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while batch := await self.batch():
                for delta in batch:
                    yield delta
        finally:
            self.close()

    def cancel(self, index: int) -> None:
        """Nothing more of one sequence is wanted."""
        if index in self._open:
            self._open.discard(index)
            self._cancel(self.request.id, index)

    def close(self) -> None:
        """Nothing more is wanted; the engine gives back what the request holds."""
        if not self.closed:
            self.closed = True
            self._wake.set()
            if self._open and not self.ended.is_set():
                self._cancel(self.request.id, None)

    def put(self, delta: Delta) -> None:
        if delta.tokens:
            self._admission.began(self.request)
        if delta.finish_reason is not None and delta.index in self._unended:
            self._unended.discard(delta.index)
            self._admission.sequence_ended(self.request, time.monotonic())
            if delta.account is not None:
                self.accounts.append(delta.account)
        if delta.index in self._open and not self.closed:
            self._arrived.append(delta)
            if delta.finish_reason is not None:
                self._open.discard(delta.index)
            if not self._open or not self._wake_at_end_only:
                self._wake.set()
        if not self._unended:
            self.ended.set()

    def fail(self, error: TriviumError) -> None:
        self._admission.gone(self.request, len(self._unended))
        self._unended.clear()
        self._error = error
        self.ended.set()
        self._wake.set()
