"""Responses that clients may come back to: the object as it was shown, and the items that went in and came out."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from msgspec import Struct

from trivium.records.conversations import StoredItem, add_items
from trivium.records.database import Database
from trivium.records.paging import Page, PageRequest, read_page
from trivium.records.viewer import EVERYBODY, IN_SIGHT, Viewer

UNFINISHED = ("queued", "in_progress")
UNEXPIRED = "expires_at > ?"


class StoredResponse(Struct, frozen=True):
    id: str
    status: str
    object: bytes  # JSON
    events: bytes | None = None  # of a background response that has ended


class ResponseRecords:
    def __init__(self, database: Database, viewer: Viewer = EVERYBODY) -> None:
        self._database = database
        self._viewer = viewer

    def seen_by(self, viewer: Viewer) -> ResponseRecords:
        return ResponseRecords(self._database, viewer)

    async def add(
        self,
        response: StoredResponse,
        *,
        seconds: int,
        previous_id: str | None,
        items: Sequence[StoredItem],
    ) -> None:
        """With its input; `finish` brings the rest. It lives for `seconds`."""
        owner = self._viewer.name

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO responses (id, expires_at, status, previous_id, object, owner) VALUES (?, ?, ?, ?, ?, ?)",
                (response.id, int(time.time()) + seconds, response.status, previous_id, response.object, owner),
            )
            _add_items(connection, response.id, items, is_input=True)

        await self._database.write(insert)

    async def change(self, response: StoredResponse) -> None:
        def update(connection: sqlite3.Connection) -> None:
            _update(connection, response)

        await self._database.write(update)

    async def finish(
        self,
        response: StoredResponse,
        output: Sequence[StoredItem],
        conversation_id: str | None = None,
        conversation_items: Sequence[StoredItem] = (),
    ) -> None:
        """The response's last change, and what it adds to its conversation, at once."""

        def update(connection: sqlite3.Connection) -> None:
            if _update(connection, response):
                _add_items(connection, response.id, output, is_input=False)
            if conversation_id is not None:
                add_items(connection, conversation_id, conversation_items)

        await self._database.write(update)

    async def get(self, response_id: str) -> StoredResponse | None:
        def select(connection: sqlite3.Connection) -> StoredResponse | None:
            row = connection.execute(
                f"SELECT id, status, object, events FROM responses WHERE id = ? AND {UNEXPIRED} AND {IN_SIGHT}",
                (response_id, time.time(), *self._viewer.values),
            ).fetchone()
            return None if row is None else StoredResponse(*row)

        return await self._database.read(select)

    async def delete(self, response_id: str) -> bool:
        """Whether there was one."""

        def delete(connection: sqlite3.Connection) -> bool:
            values = (response_id, time.time(), *self._viewer.values)
            sql = f"DELETE FROM responses WHERE id = ? AND {UNEXPIRED} AND {IN_SIGHT}"
            return connection.execute(sql, values).rowcount > 0

        return await self._database.write(delete)

    async def input_items(self, response_id: str, request: PageRequest) -> Page[StoredItem]:
        def select(connection: sqlite3.Connection) -> Page[StoredItem]:
            where = "response_id = ? AND is_input"
            return read_page(connection, "response_items", request, _item, where, (response_id,))

        return await self._database.read(select)

    async def history(self, response_id: str) -> list[StoredItem] | None:
        """All items of a response and of those before it, the oldest first; None where one of them is not kept."""

        def select(connection: sqlite3.Connection) -> list[StoredItem] | None:
            chain: list[str] = []
            next_id: str | None = response_id
            while next_id is not None:
                row = connection.execute(
                    f"SELECT id, previous_id FROM responses WHERE id = ? AND {UNEXPIRED}", (next_id, time.time())
                ).fetchone()
                if row is None:
                    return None
                chain.append(row["id"])
                next_id = row["previous_id"]
            items: list[StoredItem] = []
            for response in reversed(chain):
                rows = connection.execute(
                    "SELECT * FROM response_items WHERE response_id = ? ORDER BY serial", (response,)
                )
                items += [_item(row) for row in rows]
            return items

        return await self._database.read(select)

    async def find_item(self, item_id: str) -> StoredItem | None:
        """Of any response or conversation."""

        def select(connection: sqlite3.Connection) -> StoredItem | None:
            row = connection.execute(
                "SELECT items.id, item FROM response_items AS items JOIN responses ON responses.id = response_id"
                f" WHERE items.id = ? AND {IN_SIGHT} UNION ALL"
                " SELECT items.id, item FROM conversation_items AS items"
                " JOIN conversations ON conversations.id = conversation_id"
                f" WHERE items.id = ? AND {IN_SIGHT} LIMIT 1",
                (item_id, *self._viewer.values) * 2,
            ).fetchone()
            return None if row is None else _item(row)

        return await self._database.read(select)

    async def unfinished(self) -> list[StoredResponse]:
        def select(connection: sqlite3.Connection) -> list[StoredResponse]:
            rows = connection.execute(
                "SELECT id, status, object, events FROM responses WHERE status IN (?, ?)", UNFINISHED
            )
            return [StoredResponse(*row) for row in rows]

        return await self._database.read(select)

    async def delete_expired(self) -> None:
        def delete(connection: sqlite3.Connection) -> None:
            connection.execute(f"DELETE FROM responses WHERE NOT ({UNEXPIRED})", (time.time(),))

        await self._database.write(delete)


def _update(connection: sqlite3.Connection, response: StoredResponse) -> bool:
    """Not where it was deleted meanwhile."""
    return (
        connection.execute(
            "UPDATE responses SET status = ?, object = ?, events = ? WHERE id = ?",
            (response.status, response.object, response.events, response.id),
        ).rowcount
        > 0
    )


def _add_items(
    connection: sqlite3.Connection, response_id: str, items: Sequence[StoredItem], *, is_input: bool
) -> None:
    connection.executemany(
        "INSERT INTO response_items (response_id, is_input, id, item) VALUES (?, ?, ?, ?)",
        ((response_id, is_input, item.id, item.json) for item in items),
    )


def _item(row: sqlite3.Row) -> StoredItem:
    return StoredItem(row["id"], row["item"])
