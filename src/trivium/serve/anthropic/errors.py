"""Errors in Anthropic's shape."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from trivium.serve.errors import ApiError

TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
OVERLOADED = 529  # what Anthropic answers where others say 503


class ErrorObject(Struct, frozen=True):
    type: str
    message: str


class ErrorBody(Struct, frozen=True, tag="error"):
    error: ErrorObject
    request_id: str


def status_of(error: ApiError) -> int:
    return OVERLOADED if error.status == 503 else error.status


def encode_error(error: ApiError, request_id: str) -> bytes:
    kind = TYPE_OF_STATUS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode(ErrorBody(ErrorObject(kind, error.message), request_id))
