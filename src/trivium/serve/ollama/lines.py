"""Streams of JSON lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.ollama.errors import encode_error
from trivium.serve.sse import EventStreamResponse, Framing

JSON_LINES = Framing(b"application/x-ndjson")


def encode_line(line: Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _failure_line(failure: ApiError) -> bytes:
    return encode_error(failure) + b"\n"


class LineStream(EventStreamResponse):
    def __init__(self, lines: AsyncGenerator[bytes], limits: Limits) -> None:
        super().__init__(lines, limits, _failure_line, JSON_LINES)
