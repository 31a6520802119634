"""Models that clients made of others: another name, a system prompt, settings. They have no weights of their own."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
from msgspec import Struct

from trivium.records.database import Database


class Variant(Struct, frozen=True):
    name: str
    base: str  # the model whose weights answer
    modified_at: str = ""  # RFC 3339
    system: str = ""
    parameters: dict[str, Any] = {}  # settings of its answers, by Ollama's names
    messages: list[dict[str, Any]] = []  # that stand before every chat
    license: str = ""


class VariantRecords:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, variant: Variant) -> None:
        values = (variant.name, msgspec.json.encode(variant))

        def upsert(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO variants (name, variant) VALUES (?, ?)", values)

        await self._database.write(upsert)

    async def get(self, name: str) -> Variant | None:
        def select(connection: sqlite3.Connection) -> Variant | None:
            row = connection.execute("SELECT variant FROM variants WHERE name = ?", (name,)).fetchone()
            return None if row is None else _read(row)

        return await self._database.read(select)

    async def list(self) -> list[Variant]:
        """By name."""

        def select(connection: sqlite3.Connection) -> list[Variant]:
            return [_read(row) for row in connection.execute("SELECT variant FROM variants ORDER BY name")]

        return await self._database.read(select)

    async def delete(self, name: str) -> bool:
        """Whether there was one."""

        def delete(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM variants WHERE name = ?", (name,)).rowcount > 0

        return await self._database.write(delete)


def _read(row: sqlite3.Row) -> Variant:
    return msgspec.json.decode(row["variant"], type=Variant)
