"""Uploads: a multipart form whose one file goes to the disk as it comes, and is never in memory as a whole."""

from __future__ import annotations

import asyncio

from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from trivium.faults import fault_point
from trivium.records.blobs import IncomingBlob
from trivium.serve.body import body_in_time, body_parts
from trivium.serve.errors import ApiError, invalid
from trivium.serve.limits import Limits

FILE_FIELD = "file"
HANDED_OVER_BYTES = 1 << 20  # parsed and written at a time, in a thread
FORM_OVERHEAD_BYTES = 1 << 20  # boundaries, headers and small fields beside the file


class Upload(Struct, frozen=True):
    filename: str
    fields: dict[str, str]


async def read_upload(request: Request, target: IncomingBlob, limits: Limits) -> Upload:
    """Writes the field called `file` to the target; returns the rest of the form."""
    form = _Form(_boundary(request), target, limits)
    waiting = bytearray()
    async with body_in_time(limits.file_seconds):
        async for part in body_parts(request, limits.file_bytes + FORM_OVERHEAD_BYTES, limits):
            waiting += part
            if len(waiting) >= HANDED_OVER_BYTES:
                await asyncio.to_thread(form.feed, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(form.feed, bytes(waiting))
    return form.finish()


def _boundary(request: Request) -> bytes:
    media_type, options = parse_options_header(request.headers.get("content-type", ""))
    if media_type.lower() != b"multipart/form-data":
        shown = media_type.decode("latin-1")[:80]
        raise ApiError(415, f"the content type must be multipart/form-data, but is {shown or 'missing'}")
    boundary = options.get(b"boundary")
    if not boundary:
        raise invalid("the content type names no boundary between the parts of the form")
    return boundary


class _Form:
    def __init__(self, boundary: bytes, target: IncomingBlob, limits: Limits) -> None:
        self._target = target
        self._limits = limits
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._is_complete = False
        # Of the part at hand:
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._field = ""
        self._is_file = False
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:
            raise invalid("the boundary between the parts of the form is too long") from None

    def feed(self, data: bytes) -> None:
        fault_point("http.upload")
        try:
            self._parser.write(data)
        except FormParserError:
            raise invalid("the body is not a multipart form as its content type says") from None

    def finish(self) -> Upload:
        if not self._is_complete:
            raise invalid("the form ends before its last boundary")
        if self._filename is None:
            raise invalid(f"{FILE_FIELD}: the form has no file of this name", FILE_FIELD)
        return Upload(self._filename, self._fields)

    def _on_part_begin(self) -> None:
        self._disposition = b""
        self._value.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = b"filename" in options
        if not self._is_file:
            if len(self._fields) >= self._limits.form_fields:
                raise invalid(f"the form may have {self._limits.form_fields} fields at most")
            return
        if self._field != FILE_FIELD or self._filename is not None:
            raise invalid(f"the form must have one file, in the field {FILE_FIELD!r}", FILE_FIELD)
        name = options[b"filename"].decode("utf-8", "replace").rpartition("/")[2]
        if len(name) > self._limits.file_name_chars:
            raise invalid(f"a file's name may have {self._limits.file_name_chars} characters at most", FILE_FIELD)
        self._filename = name or "upload"

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            if self._target.size + end - start > self._limits.file_bytes:
                raise ApiError(
                    413, f"a file may have {self._limits.file_bytes} bytes at most", param=FILE_FIELD,
                    code="file_too_large", headers={"connection": "close"},
                )  # fmt: skip
            self._target.write(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > self._limits.form_field_bytes:
            raise invalid(f"{self._field[:80]} may have {self._limits.form_field_bytes} bytes at most")

    def _on_part_end(self) -> None:
        if not self._is_file:
            self._fields[self._field] = self._value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._is_complete = True
