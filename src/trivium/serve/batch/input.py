"""The input file of a batch: one request on each line, each checked for what can be known without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trivium.records.batches import BadLine, BatchRequest, LineError
from trivium.serve.batch.output import failure_line
from trivium.serve.batch.prefix_order import prefix_key
from trivium.serve.limits import Limits


class BatchLine(Struct, frozen=True):
    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


LINE = msgspec.json.Decoder(BatchLine)


class BatchInput(Struct, frozen=True):
    requests: list[BatchRequest]  # in the order in which they are to run
    bad_lines: list[BadLine]
    errors: list[LineError]  # of the bad lines


class BatchInputError(Exception):
    """The file as a whole is no batch."""

    def __init__(self, errors: list[LineError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class _LineError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def read_batch_input(path: Path, batch_id: str, endpoint: str, limits: Limits) -> BatchInput:
    """Raises BatchInputError where there is nothing to run."""
    keyed: list[tuple[bytes, BatchRequest]] = []
    bad_lines: list[BadLine] = []
    errors: list[LineError] = []
    seen: set[str] = set()
    start = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if text:
                if len(keyed) + len(bad_lines) >= limits.batch_requests:
                    message = f"a batch may have {limits.batch_requests} requests at most"
                    raise BatchInputError([LineError("too_many_requests", message, number)])
                try:
                    request = _read_line(text, endpoint, seen, limits)
                except _LineError as error:
                    custom_id = _custom_id(text, limits)
                    errors.append(LineError(error.code, str(error), number, error.param))
                    message = f"line {number}: {error}"
                    bad_lines.append(
                        BadLine(number, custom_id, failure_line(batch_id, number, custom_id, error.code, message))
                    )
                else:
                    keyed.append((prefix_key(request.body), BatchRequest(number, request.custom_id, start, len(line))))
            start += len(line)
    if not keyed:
        raise BatchInputError(errors[: limits.batch_errors] or [LineError("empty_file", "the file has no requests")])
    keyed.sort(key=lambda item: (item[0], item[1].line))
    return BatchInput([request for _, request in keyed], bad_lines, errors)


def _read_line(text: bytes, endpoint: str, seen: set[str], limits: Limits) -> BatchLine:
    if len(text) > limits.body_bytes:
        raise _LineError("line_too_long", f"a line may have {limits.body_bytes} bytes at most, but has {len(text)}")
    try:
        line = LINE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _LineError("invalid_json_line", f"not a request: {error or 'it is nested too deeply'}") from None
    if not 0 < len(line.custom_id) <= limits.custom_id_chars:
        raise _LineError(
            "invalid_custom_id", f"custom_id must have 1 to {limits.custom_id_chars} characters", "custom_id"
        )
    if line.custom_id in seen:
        raise _LineError("duplicate_custom_id", f"custom_id {line.custom_id!r} was on a line before", "custom_id")
    seen.add(line.custom_id)
    if line.method.upper() != "POST":
        raise _LineError("invalid_method", f"method must be POST, but is {line.method[:80]!r}", "method")
    if line.url != endpoint:
        raise _LineError("mismatched_url", f"url must be the batch's {endpoint}, but is {line.url[:80]!r}", "url")
    for field in ("stream", "background"):
        if line.body.get(field):
            raise _LineError("invalid_request", f"body.{field}: not in a batch", f"body.{field}")
    return line


def _custom_id(text: bytes, limits: Limits) -> str | None:
    """Of a line that is not a request, if it can be told."""
    try:
        found = msgspec.json.decode(text, type=dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    custom_id = found.get("custom_id")
    return custom_id[: limits.custom_id_chars] if isinstance(custom_id, str) else None
