"""What the program says: lines for people, or one JSON object a line for those who collect them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]


def set_up_logging(form: LogFormat, request_id: Callable[[], str | None] = lambda: None) -> None:
    """To standard error. `request_id`: of the request that is being served where something is logged."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonLines(request_id))
    logging.getLogger().addHandler(handler)


class JsonLines(logging.Formatter):
    def __init__(self, request_id: Callable[[], str | None]) -> None:
        super().__init__()
        self._request_id = request_id

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if (request_id := self._request_id()) is not None:
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
