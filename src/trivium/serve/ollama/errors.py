"""Errors in Ollama's shape: a string."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from trivium.serve.errors import ApiError


class ErrorBody(Struct, frozen=True):
    error: str


def encode_error(error: ApiError) -> bytes:
    return msgspec.json.encode(ErrorBody(error.message))
