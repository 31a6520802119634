"""Errors as clients see them: one envelope, OpenAI's types, and an HTTP status that says whether a retry can help."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException

from trivium.types.errors import (
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    NoRoomError,
    NoSuchModelError,
    NotReadyError,
    OverloadedError,
    RateLimitedError,
    RequestFailedError,
    StorageError,
)

logger = logging.getLogger("trivium.serve")

RETRY_SECONDS = 1.0  # what a client is told to wait where nothing better is known

TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    503: "server_error",
}


class ErrorObject(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(Struct, frozen=True):
    error: ErrorObject


class ApiError(Exception):
    """An answer that is not a success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        return TYPE_OF_STATUS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def encode(self) -> bytes:
        return msgspec.json.encode(ErrorEnvelope(ErrorObject(self.message, self.type, self.param, self.code)))


class RefusedError(ApiError):
    """Nothing is wrong with the request, but it is not taken now."""


class ClientGoneError(Exception):
    """The client closed the connection: there is nobody to answer."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def not_now(message: str, code: str) -> RefusedError:
    return RefusedError(503, message, code=code, headers=retry_headers(RETRY_SECONDS))


def retry_headers(seconds: float) -> dict[str, str]:
    """`Retry-After` knows whole seconds only; clients that know better read the milliseconds."""
    return {"retry-after": str(max(1, math.ceil(seconds))), "retry-after-ms": str(max(1, math.ceil(seconds * 1000)))}


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """The answer to any failure. Words meant for people pass; anything else is a bug of ours and stays in the log."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return invalid(str(error), error.param, error.code)
        case RateLimitedError():
            return RefusedError(429, str(error), code="rate_limit_exceeded", headers=retry_headers(error.retry_after))
        case OverloadedError():
            return RefusedError(429, str(error), code="queue_full", headers=retry_headers(error.retry_after))
        case EngineDeadError():
            return ApiError(503, str(error), code="engine_dead", headers=retry_headers(RETRY_SECONDS))
        case NotReadyError():
            return not_now(str(error), "engine_not_ready")
        case NoSuchModelError():
            return ApiError(404, str(error), param="model", code="model_not_found")
        case NoRoomError(retry_after=None):
            return ApiError(507, str(error), param="model", code="model_too_large", headers={"x-should-retry": "false"})
        case NoRoomError():
            seconds = error.retry_after or RETRY_SECONDS
            return RefusedError(503, str(error), code="no_room_for_model", headers=retry_headers(seconds))
        case ModelLoadError():
            return ApiError(500, str(error), code="model_load_failed", headers={"x-should-retry": "false"})
        case RequestFailedError():
            return ApiError(500, str(error), code="request_failed", headers={"x-should-retry": "false"})
        case StorageError():
            logger.error("request %s: %s", request_id, error)
            return ApiError(500, str(error), code="storage_failed", headers={"x-should-retry": "false"})
        case HTTPException(status_code=404):
            return ApiError(404, "there is no such route on this server", code="route_not_found")
        case HTTPException(status_code=405):
            return ApiError(
                405, "this route does not know that method", code="method_not_allowed", headers=error.headers
            )
        case HTTPException():
            return ApiError(error.status_code, error.detail, headers=error.headers)
    logger.error("request %s failed in a way that nobody foresaw", request_id, exc_info=error)
    return ApiError(
        500,
        "the server failed to answer this request; its log says why, under the request id",
        code="internal_error",
        headers={"x-should-retry": "false"},
    )
