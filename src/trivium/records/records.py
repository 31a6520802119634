"""The state directory and all that is kept in it.

<root>/records.sqlite3       what there is
<root>/files/<id>            bytes of files, and of the inputs of unfinished batches
<root>/incoming/             bytes that are being written, or the remains of a killed process
<root>/locks/<id>            held by the process that runs a batch or makes a response in the background; given back
                             when that ends, however it ends
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.records.batches import BatchRecords
from trivium.records.blobs import Blobs
from trivium.records.claims import Claims
from trivium.records.conversations import ConversationRecords
from trivium.records.database import Database
from trivium.records.files import FileRecords
from trivium.records.responses import ResponseRecords
from trivium.records.variants import VariantRecords
from trivium.records.viewer import Viewer
from trivium.types.errors import StorageError


@dataclass(frozen=True)
class Records:
    database: Database
    blobs: Blobs
    files: FileRecords
    batches: BatchRecords
    responses: ResponseRecords
    conversations: ConversationRecords
    variants: VariantRecords
    claims: Claims

    @classmethod
    def open(cls, root: Path, max_file_bytes: int) -> Records:
        """`max_file_bytes`: of all files together. Raises StorageError where the directory cannot be used."""
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            blobs = Blobs(root)
            claims = Claims(root / "locks")
        except OSError as error:
            raise StorageError(
                f"the state directory {root} cannot be used: {error.strerror}; choose another with --state-dir"
            ) from None
        database = Database(root / "records.sqlite3")
        return cls(
            database=database,
            blobs=blobs,
            files=FileRecords(database, blobs, max_file_bytes),
            batches=BatchRecords(database),
            responses=ResponseRecords(database),
            conversations=ConversationRecords(database),
            variants=VariantRecords(database),
            claims=claims,
        )

    def seen_by(self, viewer: Viewer) -> Records:
        """The same, without what belongs to others; what is added belongs to the viewer."""
        return replace(
            self,
            files=self.files.seen_by(viewer),
            batches=self.batches.seen_by(viewer),
            responses=self.responses.seen_by(viewer),
            conversations=self.conversations.seen_by(viewer),
        )

    async def clean_up(self) -> None:
        """Removes what has expired, and what killed processes left."""
        await self.files.delete_expired()
        await self.responses.delete_expired()
        await asyncio.to_thread(self._remove_orphans)

    def _remove_orphans(self) -> None:
        def named(connection: sqlite3.Connection) -> set[str]:
            rows = connection.execute("SELECT id FROM files UNION SELECT id FROM batches")
            return {row["id"] for row in rows}

        self.blobs.remove_orphans(self.database.read_here(named))

    def close(self) -> None:
        self.database.close()
