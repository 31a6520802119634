"""Reading a request's body: bounded in size and time, decoded once into a typed struct."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from trivium.faults import fault_point
from trivium.serve.errors import ApiError, ClientGoneError, invalid
from trivium.serve.limits import Limits
from trivium.serve.visit import current_visit

T = TypeVar("T")

# The tail of msgspec's messages: " - at `$.messages[0].role`", " - at `key` in `$.logit_bias`".
_PLACE = re.compile(r" - at (?:`key(?: in \w+)?` in )?`\$\.?(?P<path>[^`]*)`$")


async def read_json(
    request: Request, decoder: msgspec.json.Decoder[T], limits: Limits, *, type_matters: bool = True
) -> T:
    """`type_matters`: the content type must say JSON, even if no browser is in play."""
    if type_matters or "origin" in request.headers:
        _check_content_type(request)
    body = await _read(request, limits)
    if (visit := current_visit()) is not None:
        visit.recognise(body)
    if len(body) > limits.inline_body_bytes:
        return await asyncio.to_thread(_decode, decoder, body)
    return _decode(decoder, body)


def _check_content_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(415, f"the content type must be application/json, but is {media_type[:80]}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, f"a body must come as it is, but its content encoding is {encoding[:80]}")


async def _read(request: Request, limits: Limits) -> bytes:
    fault_point("http.body")
    parts = bytearray()
    async with body_in_time(limits.body_seconds):
        async for part in body_parts(request, limits.body_bytes, limits):
            parts += part
    return bytes(parts)


async def body_parts(request: Request, most_bytes: int, limits: Limits) -> AsyncGenerator[bytes]:
    """The body as it comes, refused as soon as it is known to be too large."""
    too_large = ApiError(
        413,
        f"a body may have {most_bytes} bytes at most",
        code="body_too_large",
        headers={"connection": "close"},
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes:
        await _discard(request, limits)
        raise too_large
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most_bytes:
                await _discard(request, limits)
                raise too_large
            yield part
    except ClientDisconnect:
        raise ClientGoneError from None


@asynccontextmanager
async def body_in_time(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {seconds:g} s", headers={"connection": "close"}) from None


async def _discard(request: Request, limits: Limits) -> None:
    """Let a body that is too large pass by for a while: a client that is still sending would not read the answer."""
    try:
        async with asyncio.timeout(limits.discard_seconds):
            while (await request.receive()).get("more_body"):
                pass
    except TimeoutError:
        pass


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    fault_point("http.decode")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        place = _PLACE.search(message)
        if place is None:
            raise invalid(f"the body is not what this route takes: {message}") from None
        param = place["path"] or None
        raise invalid(f"{param or 'the body'}: {message[: place.start()]}", param) from None
    except msgspec.DecodeError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid UTF-8", code="invalid_json") from None
    except RecursionError:
        raise invalid("the body is nested too deeply", code="invalid_json") from None
