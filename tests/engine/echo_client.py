"""A client of an engine process that runs the echo core, and requests for it."""

from __future__ import annotations

import time
from typing import Any

from trivium.config.options import EngineOptions
from trivium.engine.client import EngineClient, Supervision
from trivium.types.request import Request, Sampling, Stopping

ECHO_CORE = "echo_core:EchoCore"


def echo_client(model: str = "echo", supervision: Supervision | None = None, **options: Any) -> EngineClient:
    return EngineClient(EngineOptions(model=model, **options), supervision=supervision, core=ECHO_CORE)


def request(request_id: str, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 20, n: int = 1) -> Request:
    return Request(
        id=request_id,
        prompt=prompt,
        sampling=Sampling(seed=0),
        stopping=Stopping(max_tokens=max_tokens),
        arrival=time.monotonic(),
        n=n,
    )


async def tokens_of(client: EngineClient, request: Request) -> dict[int, list[int]]:
    """Each sequence's tokens, to the end."""
    tokens: dict[int, list[int]] = {index: [] for index in range(request.n)}
    async for delta in await client.submit(request):
        tokens[delta.index] += delta.tokens
    return tokens
