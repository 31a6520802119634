"""What is noted of the sequences that a request has handed to the engine together, until the engine has told all of them."""

from __future__ import annotations

import time

from trivium.engine.request_stream import RequestStream
from trivium.observe.request_account import SequenceGroup


class EngineNotes:
    def __init__(self, num_prompt_tokens: int) -> None:
        self._began = time.monotonic()
        self._ended: float | None = None
        self._streams: list[RequestStream] = []
        self._num_prompt_tokens = num_prompt_tokens
        self.num_generated_tokens = 0

    def watch(self, stream: RequestStream) -> None:
        self._streams.append(stream)

    @property
    def were_sent(self) -> bool:
        """The engine has, or had, any of them."""
        return bool(self._streams)

    def end(self) -> None:
        """The last of the text is there, or nobody wants it any more. What comes later changes nothing."""
        if self._ended is None:
            self._ended = time.monotonic()

    async def settle(self) -> None:
        """Until the engine holds nothing of them."""
        for stream in self._streams:
            await stream.ended.wait()

    def group(self) -> SequenceGroup:
        accounts = tuple(account for stream in self._streams for account in stream.accounts)
        return SequenceGroup(
            handed=min((stream.request.arrival for stream in self._streams), default=self._began),
            ended=time.monotonic() if self._ended is None else self._ended,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            accounts=accounts,
            num_silent=sum(stream.request.n for stream in self._streams) - len(accounts),
        )
