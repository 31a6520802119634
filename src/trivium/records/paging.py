"""Lists in pages: a client names the last entry it has seen."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from trivium.types.errors import InvalidRequestError

T = TypeVar("T")

Order = Literal["asc", "desc"]


class PageRequest(Struct, frozen=True):
    limit: int
    order: Order = "desc"  # by creation; the newest first
    after: str | None = None  # an id


class Page(Struct, Generic[T], frozen=True):
    data: list[T]
    has_more: bool


def read_page(
    connection: sqlite3.Connection,
    table: str,
    request: PageRequest,
    make: Callable[[sqlite3.Row], T],
    where: str = "TRUE",
    values: Sequence[object] = (),
) -> Page[T]:
    """Of a table with `serial` and `id`, the rows for which `where` holds. Both are our words, never a client's."""
    if request.after is not None:
        found = connection.execute(
            f"SELECT serial FROM {table} WHERE id = ? AND ({where})", (request.after, *values)
        ).fetchone()
        if found is None:
            raise InvalidRequestError(f"after: there is no {request.after[:80]!r} in this list", "after")
        where = f"({where}) AND serial {'>' if request.order == 'asc' else '<'} ?"
        values = (*values, found["serial"])
    direction = "ASC" if request.order == "asc" else "DESC"
    rows = connection.execute(
        f"SELECT * FROM {table} WHERE {where} ORDER BY serial {direction} LIMIT ?", (*values, request.limit + 1)
    ).fetchall()
    return Page([make(row) for row in rows[: request.limit]], len(rows) > request.limit)
