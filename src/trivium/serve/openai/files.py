"""/v1/files: upload, list, retrieve, content, delete"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from trivium.faults import fault_point
from trivium.records.files import FileRecord
from trivium.serve.errors import ApiError, invalid
from trivium.serve.multipart import read_upload
from trivium.serve.query import ListQuery, read_query
from trivium.serve.state import ServerState

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
SECONDS_OF_BATCH_FILES = 30 * 24 * 3600  # what OpenAI gives them


class ExpiresAfter(Struct, frozen=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]  # one hour to thirty days


class FileObject(Struct, frozen=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(Struct, frozen=True):
    data: list[FileObject]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


class DeletedFile(Struct, frozen=True):
    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class HeldFileResponse(FileResponse):
    """A file that is open from the beginning on: to delete it meanwhile cuts nobody off."""

    def __init__(self, path: Path, filename: str) -> None:
        fault_point("blobs.read")
        self._descriptor = os.open(path, os.O_RDONLY)
        super().__init__(
            f"/dev/fd/{self._descriptor}",
            media_type="application/octet-stream",
            filename=filename,
            stat_result=os.fstat(self._descriptor),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


class FileQuery(ListQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    purpose: str | None = None


async def create_file(state: ServerState, request: Request) -> Response:
    files = state.records.files
    incoming = files.incoming()
    try:
        upload = await read_upload(request, incoming, state.limits)
        purpose = upload.fields.get("purpose")
        if purpose not in PURPOSES:
            raise invalid(f"purpose must be one of {', '.join(PURPOSES)}", "purpose")
        expires_after = _expires_after(upload.fields)
        seconds = SECONDS_OF_BATCH_FILES if purpose == "batch" else None
        record = await files.keep(
            incoming, upload.filename, purpose, expires_after.seconds if expires_after else seconds
        )
    finally:
        incoming.discard()
    return _json(_shown(record))


def _expires_after(fields: dict[str, str]) -> ExpiresAfter | None:
    """Clients write the object's fields as `expires_after[anchor]` and `expires_after[seconds]`."""
    given = {name: fields[key] for name in ("anchor", "seconds") if (key := f"expires_after[{name}]") in fields}
    if not given:
        return None
    try:
        return msgspec.convert(given, ExpiresAfter, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"expires_after: {error}", "expires_after") from None


async def list_files(state: ServerState, request: Request) -> Response:
    query = read_query(request, FileQuery)
    page = await state.records.files.list(query.page, query.purpose)
    shown = [_shown(record) for record in page.data]
    ids = [file.id for file in shown] or [""]  # the specification knows no null here
    return _json(FileList(shown, ids[0], ids[-1], page.has_more))


async def retrieve_file(state: ServerState, request: Request) -> Response:
    return _json(_shown(await found_file(state, request.path_params["file_id"])))


async def file_content(state: ServerState, request: Request) -> Response:
    record = await found_file(state, request.path_params["file_id"])
    try:
        return await asyncio.to_thread(HeldFileResponse, state.records.files.path(record), record.filename)
    except FileNotFoundError:
        raise _no_such_file(record.id) from None  # deleted meanwhile


async def delete_file(state: ServerState, request: Request) -> Response:
    file_id: str = request.path_params["file_id"]
    if not await state.records.files.delete(file_id):
        raise _no_such_file(file_id)
    return _json(DeletedFile(file_id))


async def found_file(state: ServerState, file_id: str, param: str | None = None) -> FileRecord:
    record = await state.records.files.get(file_id)
    if record is None:
        raise _no_such_file(file_id, param)
    return record


def _no_such_file(file_id: str, param: str | None = None) -> ApiError:
    return ApiError(404, f"there is no file {file_id[:80]!r}", param=param, code="file_not_found")


def _shown(record: FileRecord) -> FileObject:
    return FileObject(record.id, record.bytes, record.created_at, record.expires_at, record.filename, record.purpose)


def _json(answer: Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
