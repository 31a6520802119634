"""Batches: a queue of requests that outlives the server, in which each request is answered exactly once.

A request's answer is written to its row in one transaction with the batch's counts, and only where there was none; so
a request that was running when the server was killed runs again, and one whose answer was written never does.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trivium.records.database import Database
from trivium.records.files import FileRecord, insert_file
from trivium.records.paging import Page, PageRequest, read_page
from trivium.records.viewer import EVERYBODY, IN_SIGHT, Viewer


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


UNFINISHED = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


class LineError(Struct, frozen=True):
    """Why a batch cannot run."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    endpoint: str
    model: str  # of the server that took it, and whose likes may run it
    input_file_id: str
    completion_window: str
    expires_at: int
    output_seconds: int  # for which its output and error files live
    metadata: dict[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    errors: list[LineError] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    owner: str = ""


class BatchRequest(Struct, frozen=True):
    """A line of the input file."""

    line: int
    custom_id: str
    start: int  # bytes from the beginning of the file
    length: int  # bytes
    strikes: int = 0


class BadLine(Struct, frozen=True):
    """A line that is no request, and its line in the error file."""

    line: int
    custom_id: str | None
    result: bytes


class TokenCounts(Struct, frozen=True):
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


class BatchRecords:
    def __init__(self, database: Database, viewer: Viewer = EVERYBODY) -> None:
        self._database = database
        self._viewer = viewer

    def seen_by(self, viewer: Viewer) -> BatchRecords:
        return BatchRecords(self._database, viewer)

    async def add(self, batch: BatchRecord) -> None:
        batch = replace(batch, owner=self._viewer.name)
        columns = [name for name in BatchRecord.__struct_fields__ if name not in ("metadata", "errors")]
        values = [getattr(batch, name) for name in columns]

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                f"INSERT INTO batches ({', '.join(columns)}, metadata) VALUES ({', '.join('?' * (len(columns) + 1))})",
                (*values, None if batch.metadata is None else json.dumps(batch.metadata)),
            )

        await self._database.write(insert)

    async def get(self, batch_id: str) -> BatchRecord | None:
        return await self._database.read(lambda connection: _select(connection, batch_id, self._viewer))

    async def list(self, request: PageRequest) -> Page[BatchRecord]:
        def select(connection: sqlite3.Connection) -> Page[BatchRecord]:
            return read_page(connection, "batches", request, _batch, IN_SIGHT, self._viewer.values)

        return await self._database.read(select)

    async def unfinished(self, model: str) -> Sequence[BatchRecord]:
        """The oldest first."""

        def select(connection: sqlite3.Connection) -> list[BatchRecord]:
            marks = ", ".join("?" * len(UNFINISHED))
            rows = connection.execute(
                f"SELECT * FROM batches WHERE status IN ({marks}) AND model = ? ORDER BY serial", (*UNFINISHED, model)
            )
            return [_batch(row) for row in rows]

        return await self._database.read(select)

    # From validating to the end

    async def begin(self, batch_id: str, requests: Sequence[BatchRequest], bad_lines: Sequence[BadLine]) -> None:
        """The requests in the order in which they are to run. Does nothing if the batch was cancelled meanwhile."""

        def insert(connection: sqlite3.Connection) -> None:
            total = len(requests) + len(bad_lines)
            moved = connection.execute(
                "UPDATE batches SET status = ?, in_progress_at = ?, total = ?, failed = ? WHERE id = ? AND status = ?",
                (
                    BatchStatus.IN_PROGRESS,
                    int(time.time()),
                    total,
                    len(bad_lines),
                    batch_id,
                    BatchStatus.VALIDATING,
                ),
            )
            if moved.rowcount == 0:
                return
            connection.executemany(
                "INSERT INTO batch_requests (batch_id, line, rank, custom_id, start, length) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (batch_id, request.line, rank, request.custom_id, request.start, request.length)
                    for rank, request in enumerate(requests)
                ),
            )
            connection.executemany(
                "INSERT INTO batch_requests (batch_id, line, rank, custom_id, start, length, succeeded, result)"
                " VALUES (?, ?, -1, ?, 0, 0, FALSE, ?)",
                ((batch_id, bad.line, bad.custom_id, bad.result) for bad in bad_lines),
            )

        await self._database.write(insert)

    async def fail(self, batch_id: str, errors: Sequence[LineError]) -> None:
        def update(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE batches SET status = ?, failed_at = ?, errors = ? WHERE id = ? AND status = ?",
                (
                    BatchStatus.FAILED,
                    int(time.time()),
                    msgspec.json.encode(errors).decode(),
                    batch_id,
                    BatchStatus.VALIDATING,
                ),
            )

        await self._database.write(update)

    async def unanswered(self, batch_id: str, after_rank: int, limit: int) -> Sequence[tuple[int, BatchRequest]]:
        """(rank, request) of the next ones."""

        def select(connection: sqlite3.Connection) -> Sequence[tuple[int, BatchRequest]]:
            rows = connection.execute(
                "SELECT rank, line, custom_id, start, length, strikes FROM batch_requests"
                " WHERE batch_id = ? AND succeeded IS NULL AND rank > ? ORDER BY rank LIMIT ?",
                (batch_id, after_rank, limit),
            )
            return [(row["rank"], BatchRequest(*tuple(row)[1:])) for row in rows]

        return await self._database.read(select)

    async def strike(self, batch_id: str, line: int) -> int:
        """The engine died with the request in its hands; how often it has now."""

        def update(connection: sqlite3.Connection) -> int:
            (strikes,) = connection.execute(
                "UPDATE batch_requests SET strikes = strikes + 1 WHERE batch_id = ? AND line = ? RETURNING strikes",
                (batch_id, line),
            ).fetchone()
            return int(strikes)

        return await self._database.write(update)

    async def answer(self, batch_id: str, line: int, succeeded: bool, result: bytes, tokens: TokenCounts) -> None:
        def update(connection: sqlite3.Connection) -> None:
            written = connection.execute(
                "UPDATE batch_requests SET succeeded = ?, result = ?"
                " WHERE batch_id = ? AND line = ? AND succeeded IS NULL",
                (succeeded, result, batch_id, line),
            )
            if written.rowcount:
                connection.execute(
                    "UPDATE batches SET completed = completed + ?, failed = failed + ?,"
                    " input_tokens = input_tokens + ?, cached_tokens = cached_tokens + ?,"
                    " output_tokens = output_tokens + ?, reasoning_tokens = reasoning_tokens + ? WHERE id = ?",
                    (
                        int(succeeded),
                        int(not succeeded),
                        tokens.input,
                        tokens.cached,
                        tokens.output,
                        tokens.reasoning,
                        batch_id,
                    ),
                )

        await self._database.write(update)

    async def cancel(self, batch_id: str) -> BatchRecord | None:
        """Asks for it; whoever runs the batch ends it. Changes nothing if it is past that."""

        def update(connection: sqlite3.Connection) -> BatchRecord | None:
            connection.execute(
                f"UPDATE batches SET status = ?, cancelling_at = ? WHERE id = ? AND status IN (?, ?) AND {IN_SIGHT}",
                (
                    BatchStatus.CANCELLING,
                    int(time.time()),
                    batch_id,
                    BatchStatus.VALIDATING,
                    BatchStatus.IN_PROGRESS,
                    *self._viewer.values,
                ),
            )
            return _select(connection, batch_id, self._viewer)

        return await self._database.write(update)

    async def finalize(self, batch_id: str) -> None:
        """All requests are answered, or no more will be."""

        def update(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE batches SET status = ?, finalizing_at = ? WHERE id = ? AND status = ?",
                (BatchStatus.FINALIZING, int(time.time()), batch_id, BatchStatus.IN_PROGRESS),
            )

        await self._database.write(update)

    def results(self, batch_id: str) -> Iterator[tuple[int, str | None, bool | None, bytes | None]]:
        """(line, custom id, success, result) of all requests in the order of the input; blocking."""
        page, last = 256, 0
        while True:
            rows = self._database.read_here(
                lambda connection, last=last: connection.execute(  # type: ignore[misc]
                    "SELECT line, custom_id, succeeded, result FROM batch_requests"
                    " WHERE batch_id = ? AND line > ? ORDER BY line LIMIT ?",
                    (batch_id, last, page),
                ).fetchall()
            )
            for row in rows:
                succeeded = None if row["succeeded"] is None else bool(row["succeeded"])
                yield row["line"], row["custom_id"], succeeded, row["result"]
            if len(rows) < page:
                return
            last = rows[-1]["line"]

    async def end(
        self, batch_id: str, status: BatchStatus, output: FileRecord | None, errors: FileRecord | None
    ) -> None:
        """The batch's last change, and its files, at once. The requests' rows are no longer needed."""

        def update(connection: sqlite3.Connection) -> None:
            for record in (output, errors):
                if record is not None:
                    insert_file(connection, record)
            connection.execute(
                f"UPDATE batches SET status = ?, {status}_at = ?, output_file_id = ?, error_file_id = ? WHERE id = ?",
                (status, int(time.time()), output and output.id, errors and errors.id, batch_id),
            )
            connection.execute("DELETE FROM batch_requests WHERE batch_id = ?", (batch_id,))

        await self._database.write(update)


def _select(connection: sqlite3.Connection, batch_id: str, viewer: Viewer) -> BatchRecord | None:
    values = (batch_id, *viewer.values)
    row = connection.execute(f"SELECT * FROM batches WHERE id = ? AND {IN_SIGHT}", values).fetchone()
    return None if row is None else _batch(row)


def _batch(row: sqlite3.Row) -> BatchRecord:
    values: dict[str, Any] = {name: row[name] for name in BatchRecord.__struct_fields__}
    values["status"] = BatchStatus(row["status"])
    values["metadata"] = None if row["metadata"] is None else json.loads(row["metadata"])
    values["errors"] = None if row["errors"] is None else msgspec.json.decode(row["errors"], type=list[LineError])
    return BatchRecord(**values)
