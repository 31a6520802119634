"""Files: a row for each in the database, its bytes beside it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from msgspec import Struct

from trivium.faults import fault_point
from trivium.records.blobs import Blobs, IncomingBlob
from trivium.records.database import Database
from trivium.records.ids import new_id
from trivium.records.paging import Page, PageRequest, read_page
from trivium.records.viewer import EVERYBODY, IN_SIGHT, Viewer
from trivium.types.errors import InvalidRequestError

UNEXPIRED = "(expires_at IS NULL OR expires_at > ?)"


class FileRecord(Struct, frozen=True):
    id: str
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    bytes: int
    sha256: str
    owner: str = ""


class FileRecords:
    def __init__(self, database: Database, blobs: Blobs, max_total_bytes: int, viewer: Viewer = EVERYBODY) -> None:
        self._database = database
        self._blobs = blobs
        self._max_total_bytes = max_total_bytes
        self._viewer = viewer

    def seen_by(self, viewer: Viewer) -> FileRecords:
        return FileRecords(self._database, self._blobs, self._max_total_bytes, viewer)

    def incoming(self) -> IncomingBlob:
        return self._blobs.incoming()

    async def keep(self, incoming: IncomingBlob, filename: str, purpose: str, seconds: int | None) -> FileRecord:
        fault_point("files.keep")
        owner = self._viewer.name
        record = await asyncio.to_thread(self.publish, incoming, filename, purpose, seconds, owner)

        def insert(connection: sqlite3.Connection) -> None:
            (total,) = connection.execute("SELECT COALESCE(SUM(bytes), 0) FROM files").fetchone()
            if total + record.bytes > self._max_total_bytes:
                raise InvalidRequestError(
                    f"files may take {self._max_total_bytes} bytes together, but with this one of {record.bytes} bytes"
                    f" they would take {total + record.bytes}; delete some",
                    "file",
                    "storage_full",
                )
            insert_file(connection, record)

        try:
            await self._database.write(insert)
        except Exception:
            self._blobs.remove(record.id)
            raise
        return record

    def publish(
        self, incoming: IncomingBlob, filename: str, purpose: str, seconds: int | None, owner: str
    ) -> FileRecord:
        """Moves the bytes to their place, synced, in the calling thread. The file exists once `insert_file` commits.

        `seconds`: for which it lives; None is for ever.
        """
        file_id = new_id("file-")
        blob = self._blobs.publish(incoming, file_id)
        now = int(time.time())
        return FileRecord(
            id=file_id,
            created_at=now,
            expires_at=None if seconds is None else now + seconds,
            filename=filename,
            purpose=purpose,
            bytes=blob.size,
            sha256=blob.sha256,
            owner=owner,
        )

    async def get(self, file_id: str) -> FileRecord | None:
        def select(connection: sqlite3.Connection) -> FileRecord | None:
            row = connection.execute(
                f"SELECT * FROM files WHERE id = ? AND {UNEXPIRED} AND {IN_SIGHT}",
                (file_id, time.time(), *self._viewer.values),
            ).fetchone()
            return None if row is None else _file(row)

        return await self._database.read(select)

    async def list(self, request: PageRequest, purpose: str | None) -> Page[FileRecord]:
        def select(connection: sqlite3.Connection) -> Page[FileRecord]:
            return read_page(
                connection,
                "files",
                request,
                _file,
                f"{UNEXPIRED} AND (? IS NULL OR purpose = ?) AND {IN_SIGHT}",
                (time.time(), purpose, purpose, *self._viewer.values),
            )

        return await self._database.read(select)

    def path(self, record: FileRecord) -> Path:
        return self._blobs.path(record.id)

    async def delete(self, file_id: str) -> bool:
        """Whether there was one."""

        def delete(connection: sqlite3.Connection) -> bool:
            values = (file_id, time.time(), *self._viewer.values)
            sql = f"DELETE FROM files WHERE id = ? AND {UNEXPIRED} AND {IN_SIGHT}"
            return connection.execute(sql, values).rowcount > 0

        existed = await self._database.write(delete)
        if existed:
            self._blobs.remove(file_id)
        return existed

    async def delete_expired(self) -> None:
        def delete(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("DELETE FROM files WHERE expires_at <= ? RETURNING id", (time.time(),))
            return [row["id"] for row in rows]

        for file_id in await self._database.write(delete):
            self._blobs.remove(file_id)


def insert_file(connection: sqlite3.Connection, record: FileRecord) -> None:
    connection.execute(
        "INSERT INTO files (id, created_at, expires_at, filename, purpose, bytes, sha256, owner)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            record.created_at,
            record.expires_at,
            record.filename,
            record.purpose,
            record.bytes,
            record.sha256,
            record.owner,
        ),
    )


def _file(row: sqlite3.Row) -> FileRecord:
    return FileRecord(*(row[name] for name in FileRecord.__struct_fields__))
