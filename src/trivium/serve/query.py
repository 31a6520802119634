"""Query parameters, decoded once into a typed struct."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from trivium.records.paging import PageRequest
from trivium.serve.errors import invalid

T = TypeVar("T")


class ListQuery(Struct, frozen=True):
    """What every list takes; routes with other bounds or defaults derive from it."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None

    @property
    def page(self) -> PageRequest:
        return PageRequest(self.limit, self.order, self.after)


def read_query(request: Request, struct: type[T]) -> T:
    try:
        return msgspec.convert(dict(request.query_params), struct, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        param = place.rstrip("`") or None
        raise invalid(f"{param or 'the query'}: {message}", param) from None
