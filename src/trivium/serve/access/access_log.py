"""The access log: a line of JSON for each request."""

from __future__ import annotations

import logging
import os

import msgspec
from msgspec import Struct

from trivium.faults import fault_point
from trivium.types.errors import ConfigError

logger = logging.getLogger("trivium.serve")

STANDARD_OUTPUT = "-"


class Entry(Struct, frozen=True):
    time: str  # when the request came
    request_id: str
    client: str | None  # address
    key: str | None  # its name; None: nobody's
    method: str
    path: str  # without the query
    status: int | None  # None: the client went before there was one
    bytes: int  # of the answer's body
    seconds: float  # to the answer's end
    first_byte_seconds: float | None
    complete: bool  # the client was sent all of it


class AccessLog:
    def __init__(self, path: str) -> None:
        """`path`: a file that is appended to, or `-`, standard output."""
        self._path = path
        self._descriptor = self._open()
        self._has_failed = False

    def _open(self) -> int:
        if self._path == STANDARD_OUTPUT:
            return 1
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise ConfigError(f"the access log {self._path} cannot be written: {error.strerror}") from None

    def reopen(self) -> None:
        """For when the file was moved away."""
        fault_point("access.reopen_log")
        before, self._descriptor = self._descriptor, self._open()
        if before != 1:
            os.close(before)

    def write(self, entry: Entry) -> None:
        try:
            fault_point("access.log")
            os.write(self._descriptor, msgspec.json.encode(entry) + b"\n")
            self._has_failed = False
        except Exception as error:  # whatever it is, the answer was sent
            if not self._has_failed:
                logger.error("the access log %s cannot be written: %s", self._path, error)
            self._has_failed = True
