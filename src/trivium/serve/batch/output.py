"""The lines of a batch's output and error files."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from trivium.records.batches import TokenCounts
from trivium.serve.in_process import Answer


class LineResponse(Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class LineFailure(Struct, frozen=True):
    code: str
    message: str


class OutputLine(Struct, frozen=True):
    id: str
    custom_id: str | None
    response: LineResponse | None
    error: LineFailure | None


def answer_line(batch_id: str, line: int, custom_id: str, answer: Answer) -> bytes:
    response = LineResponse(answer.status, answer.headers.get("x-request-id", ""), Raw(answer.body))
    return msgspec.json.encode(OutputLine(_id(batch_id, line), custom_id, response, None))


def failure_line(batch_id: str, line: int, custom_id: str | None, code: str, message: str) -> bytes:
    """Of a request that was never answered."""
    return msgspec.json.encode(OutputLine(_id(batch_id, line), custom_id, None, LineFailure(code, message)))


def _id(batch_id: str, line: int) -> str:
    return f"batch_req_{batch_id.removeprefix('batch_')}_{line}"


class _Details(Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(Struct):
    """Responses call input and output what the older routes call prompt and completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(Struct):
    usage: _Usage | None = None


BODY: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Body)
NO_DETAILS = _Details()


def tokens_of(answer: Answer) -> TokenCounts:
    usage = BODY.decode(answer.body).usage
    if usage is None:
        return TokenCounts()
    return TokenCounts(
        usage.prompt_tokens or usage.input_tokens,
        (usage.prompt_tokens_details or usage.input_tokens_details or NO_DETAILS).cached_tokens,
        usage.completion_tokens or usage.output_tokens,
        (usage.completion_tokens_details or usage.output_tokens_details or NO_DETAILS).reasoning_tokens,
    )
