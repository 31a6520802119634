"""/v1/batches: create, list, retrieve, cancel. serve.batch runs them."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.faults import fault_point
from trivium.records.batches import BatchRecord, BatchStatus, LineError
from trivium.records.ids import new_id
from trivium.serve.body import read_json
from trivium.serve.errors import ApiError, invalid
from trivium.serve.openai.files import SECONDS_OF_BATCH_FILES, ExpiresAfter, found_file
from trivium.serve.openai.metadata import check_metadata
from trivium.serve.query import ListQuery, read_query
from trivium.serve.state import ServerState

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
SECONDS_OF_UNIT = {"m": 60, "h": 3600, "d": 86400}
WINDOW = re.compile(r"([1-9][0-9]{0,3})([mhd])")


class CreateBatch(Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


DECODER = msgspec.json.Decoder(CreateBatch)


class BatchErrors(Struct, frozen=True):
    data: list[LineError]
    object: Literal["list"] = "list"


class RequestCounts(Struct, frozen=True):
    total: int
    completed: int
    failed: int


class InputDetails(Struct, frozen=True):
    cached_tokens: int


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int


class BatchUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class BatchObject(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(Struct, frozen=True):
    data: list[BatchObject]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


async def create_batch(state: ServerState, request: Request) -> Response:
    body = await read_json(request, DECODER, state.limits)
    if body.endpoint not in ENDPOINTS:
        raise invalid(f"endpoint must be one of {', '.join(ENDPOINTS)}", "endpoint")
    seconds = _window_seconds(body.completion_window)
    check_metadata(body.metadata, state.limits)
    file = await found_file(state, body.input_file_id, "input_file_id")
    if file.purpose != "batch":
        raise invalid(f"input_file_id: the file's purpose must be batch, but is {file.purpose}", "input_file_id")
    fault_point("batches.create")
    now = int(time.time())
    batch = BatchRecord(
        id=new_id("batch_"),
        created_at=now,
        endpoint=body.endpoint,
        model=state.models.offers.default.name,
        input_file_id=file.id,
        completion_window=body.completion_window,
        expires_at=now + seconds,
        output_seconds=body.output_expires_after.seconds if body.output_expires_after else SECONDS_OF_BATCH_FILES,
        metadata=body.metadata,
    )
    # The batch has its input to itself: to delete the file does not disturb it.
    await asyncio.to_thread(state.records.blobs.link, file.id, batch.id)
    await state.records.batches.add(batch)
    state.batch_news.set()
    return _answer(_shown(batch))


def _window_seconds(window: str) -> int:
    match = WINDOW.fullmatch(window)
    if match is None:
        raise invalid("completion_window must be like 24h, 30m or 7d", "completion_window")
    return int(match[1]) * SECONDS_OF_UNIT[match[2]]


async def list_batches(state: ServerState, request: Request) -> Response:
    page = await state.records.batches.list(read_query(request, ListQuery).page)
    shown = [_shown(batch) for batch in page.data]
    ids = [batch.id for batch in shown] or [""]
    return _answer(BatchList(shown, ids[0], ids[-1], page.has_more))


async def retrieve_batch(state: ServerState, request: Request) -> Response:
    batch_id: str = request.path_params["batch_id"]
    batch = await state.records.batches.get(batch_id)
    if batch is None:
        raise _no_such_batch(batch_id)
    return _answer(_shown(batch))


async def cancel_batch(state: ServerState, request: Request) -> Response:
    batch_id: str = request.path_params["batch_id"]
    batch = await state.records.batches.cancel(batch_id)
    if batch is None:
        raise _no_such_batch(batch_id)
    if batch.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        raise invalid(f"the batch cannot be cancelled: it is {batch.status}", code="batch_not_cancellable")
    state.batch_news.set()
    return _answer(_shown(batch))


def _no_such_batch(batch_id: str) -> ApiError:
    return ApiError(404, f"there is no batch {batch_id[:80]!r}", code="batch_not_found")


def _shown(batch: BatchRecord) -> BatchObject:
    same = {
        name: getattr(batch, name)
        for name in BatchObject.__struct_fields__
        if name not in ("object", "errors", "request_counts", "usage")
    }
    return BatchObject(
        **same,
        errors=None if batch.errors is None else BatchErrors(batch.errors),
        request_counts=RequestCounts(batch.total, batch.completed, batch.failed),
        usage=BatchUsage(
            batch.input_tokens,
            InputDetails(batch.cached_tokens),
            batch.output_tokens,
            OutputDetails(batch.reasoning_tokens),
            batch.input_tokens + batch.output_tokens,
        ),
    )


def _answer(answer: Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
