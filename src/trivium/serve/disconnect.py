"""Noticing that a client has gone while its answer is being made."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from trivium.serve.errors import ClientGoneError

T = TypeVar("T")


async def client_gone(receive: Receive) -> None:
    """Returns once the connection is closed. The body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Until every task has cleaned up after itself; what they raise is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def unless_client_goes(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; the work is cancelled and ClientGoneError raised if the client does not wait for it."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(client_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        await cancel_and_wait(working, watching)
