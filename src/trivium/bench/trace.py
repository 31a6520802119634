"""Recorded arrivals: Mooncake's JSON lines (with the hashes of shared blocks) and Azure's CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from trivium.bench.errors import BenchError

MOONCAKE_BLOCK_TOKENS = 512  # each hash in a Mooncake trace stands for so many tokens of the prompt
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TracedRequest(Struct, frozen=True):
    at: float  # seconds since the first request of the trace
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # equal blocks are equal text, so far as everything before them is equal too


class _MooncakeLine(Struct):
    timestamp: int  # milliseconds
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> list[TracedRequest]:
    """In the order of arrival."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: the trace cannot be read: {error}") from None
    lines = text.splitlines()
    read = _read_mooncake if text.lstrip().startswith("{") else _read_azure
    requests = sorted(read(path, lines), key=lambda request: request.at)
    if not requests:
        raise BenchError(f"{path}: the trace has no request")
    first = requests[0].at
    return [msgspec.structs.replace(request, at=request.at - first) for request in requests]


def _read_mooncake(path: Path, lines: list[str]) -> Iterator[TracedRequest]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BenchError(f"{path}, line {number}: not a request of a Mooncake trace: {error}") from None
        yield TracedRequest(one.timestamp / 1000, max(1, one.input_length), max(1, one.output_length), one.hash_ids)


def _read_azure(path: Path, lines: list[str]) -> Iterator[TracedRequest]:
    rows = csv.DictReader(lines)
    if rows.fieldnames is None or not {*AZURE_COLUMNS} <= {*rows.fieldnames}:
        raise BenchError(
            f"{path}: neither a Mooncake trace (JSON lines) nor an Azure one (columns {', '.join(AZURE_COLUMNS)})"
        )
    for row in rows:
        try:
            moment, prompt, output = (row[name] for name in AZURE_COLUMNS)
            at = datetime.fromisoformat(moment[:26])  # seven decimals are written, six are a microsecond
            yield TracedRequest(at.timestamp(), max(1, int(prompt)), max(1, int(output)))
        except (TypeError, ValueError) as error:
            raise BenchError(f"{path}, line {rows.line_num}: not a request of an Azure trace: {error}") from None
