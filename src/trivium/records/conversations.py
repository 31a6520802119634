"""Conversations: items in their order, to which responses add what went in and came out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from msgspec import Struct

from trivium.records.database import Database
from trivium.records.paging import Page, PageRequest, read_page
from trivium.records.viewer import EVERYBODY, IN_SIGHT, Viewer


class StoredItem(Struct, frozen=True):
    id: str
    json: bytes


class Conversation(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]


class ConversationRecords:
    def __init__(self, database: Database, viewer: Viewer = EVERYBODY) -> None:
        self._database = database
        self._viewer = viewer

    def seen_by(self, viewer: Viewer) -> ConversationRecords:
        return ConversationRecords(self._database, viewer)

    async def add(self, conversation: Conversation, items: Sequence[StoredItem]) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO conversations (id, created_at, metadata, owner) VALUES (?, ?, ?, ?)",
                (conversation.id, conversation.created_at, json.dumps(conversation.metadata), self._viewer.name),
            )
            add_items(connection, conversation.id, items)

        await self._database.write(insert)

    async def get(self, conversation_id: str) -> Conversation | None:
        return await self._database.read(lambda connection: _select(connection, conversation_id, self._viewer))

    async def change_metadata(self, conversation_id: str, metadata: dict[str, str]) -> Conversation | None:
        def update(connection: sqlite3.Connection) -> Conversation | None:
            values = (json.dumps(metadata), conversation_id, *self._viewer.values)
            connection.execute(f"UPDATE conversations SET metadata = ? WHERE id = ? AND {IN_SIGHT}", values)
            return _select(connection, conversation_id, self._viewer)

        return await self._database.write(update)

    async def delete(self, conversation_id: str) -> bool:
        """Whether there was one. Its items go with it."""

        def delete(connection: sqlite3.Connection) -> bool:
            values = (conversation_id, *self._viewer.values)
            return connection.execute(f"DELETE FROM conversations WHERE id = ? AND {IN_SIGHT}", values).rowcount > 0

        return await self._database.write(delete)

    async def add_items(self, conversation_id: str, items: Sequence[StoredItem]) -> bool:
        """Whether there is such a conversation."""
        return await self._database.write(lambda connection: add_items(connection, conversation_id, items))

    async def items(self, conversation_id: str) -> list[StoredItem] | None:
        """All of them, the oldest first; None where there is no such conversation."""

        def select(connection: sqlite3.Connection) -> list[StoredItem] | None:
            if _select(connection, conversation_id, self._viewer) is None:
                return None
            rows = connection.execute(
                "SELECT id, item FROM conversation_items WHERE conversation_id = ? ORDER BY serial", (conversation_id,)
            )
            return [_item(row) for row in rows]

        return await self._database.read(select)

    async def list_items(self, conversation_id: str, request: PageRequest) -> Page[StoredItem]:
        def select(connection: sqlite3.Connection) -> Page[StoredItem]:
            where, values = "conversation_id = ?", (conversation_id,)
            return read_page(connection, "conversation_items", request, _item, where, values)

        return await self._database.read(select)

    async def get_item(self, conversation_id: str, item_id: str) -> StoredItem | None:
        def select(connection: sqlite3.Connection) -> StoredItem | None:
            row = connection.execute(
                "SELECT id, item FROM conversation_items WHERE conversation_id = ? AND id = ?",
                (conversation_id, item_id),
            ).fetchone()
            return None if row is None else _item(row)

        return await self._database.read(select)

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """Whether there was one."""

        def delete(connection: sqlite3.Connection) -> bool:
            values = (conversation_id, item_id)
            sql = "DELETE FROM conversation_items WHERE conversation_id = ? AND id = ?"
            return connection.execute(sql, values).rowcount > 0

        return await self._database.write(delete)


def add_items(connection: sqlite3.Connection, conversation_id: str, items: Sequence[StoredItem]) -> bool:
    """Whether there is such a conversation; it may have been deleted while a response was made for it."""
    if _select(connection, conversation_id, EVERYBODY) is None:
        return False
    connection.executemany(
        "INSERT INTO conversation_items (conversation_id, id, item) VALUES (?, ?, ?)",
        ((conversation_id, item.id, item.json) for item in items),
    )
    return True


def _select(connection: sqlite3.Connection, conversation_id: str, viewer: Viewer) -> Conversation | None:
    row = connection.execute(
        f"SELECT id, created_at, metadata FROM conversations WHERE id = ? AND {IN_SIGHT}",
        (conversation_id, *viewer.values),
    ).fetchone()
    return None if row is None else Conversation(row["id"], row["created_at"], json.loads(row["metadata"]))


def _item(row: sqlite3.Row) -> StoredItem:
    return StoredItem(row["id"], row["item"])
