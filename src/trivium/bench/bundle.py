"""The evidence of an experiment: a folder with everything its figures come from, and the digest of each file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from trivium.bench.errors import BenchError
from trivium.bench.record import RECORD_VERSION, SIDES, Record
from trivium.bench.results import Results
from trivium.bench.samples import RequestSample
from trivium.bench.server_view import Metrics

RECORD = "record.json"
SAMPLES = "samples.jsonl"
FIGURES = "figures.json"
REPORT = "report.html"
DIGESTS = "SHA256SUMS"

T = TypeVar("T")


class Evidence(Struct, frozen=True):
    record: Record
    samples: list[RequestSample]  # in the order of runs
    figures: Results
    metrics: list[Metrics]  # of each target


def write_bundle(folder: Path, evidence: Evidence, report: str, others: Mapping[str, str]) -> str:
    """`others` are further texts by file name, such as the servers' logs. Returns the bundle's digest."""
    require_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts = {
            RECORD: _pretty(evidence.record),
            SAMPLES: msgspec.json.Encoder().encode_lines(evidence.samples),
            FIGURES: _pretty(evidence.figures),
            REPORT: report.encode(),
            **{name: text.encode() for name, text in {**_metrics_files(evidence), **others}.items()},
        }
        for name, data in texts.items():
            (folder / name).write_bytes(data)
        digests = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(texts.items()))
        (folder / DIGESTS).write_text(digests)
    except OSError as error:
        raise BenchError(f"{folder}: the bundle cannot be written: {error}") from None
    return bundle_digest(folder)


def require_new(folder: Path) -> None:
    """Nothing that is there already is written over."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BenchError(f"{folder}: the folder of a bundle must be new or empty")


def bundle_digest(folder: Path) -> str:
    """Of the list of digests: it stands for the whole bundle, and can be told where the bundle is spoken of."""
    return hashlib.sha256(_read(folder / DIGESTS)).hexdigest()


def read_bundle(folder: Path) -> Evidence:
    """Nothing is believed beyond its form: see `verify`."""
    record = _decode(folder / RECORD, Record)
    if record.version != RECORD_VERSION:
        raise BenchError(f"{folder}: version {record.version} of a bundle; this program reads version {RECORD_VERSION}")
    metrics = [
        Metrics(
            _read_if_there(folder / _metrics_name("before", suffix)),
            _read_if_there(folder / _metrics_name("after", suffix)),
        )
        for suffix in suffixes(record)
    ]
    return Evidence(record, list(_read_samples(folder / SAMPLES)), _decode(folder / FIGURES, Results), metrics)


def suffixes(record: Record) -> list[str]:
    """What tells the files of several servers apart."""
    return [f"-{side}" for side in SIDES] if len(record.targets) > 1 else [""]


def _metrics_name(when: str, suffix: str) -> str:
    return f"metrics-{when}{suffix}.txt"


def _metrics_files(evidence: Evidence) -> dict[str, str]:
    files = {}
    for suffix, metrics in zip(suffixes(evidence.record), evidence.metrics, strict=True):
        for when, text in (("before", metrics.before), ("after", metrics.after)):
            if text is not None:
                files[_metrics_name(when, suffix)] = text
    return files


def _read_if_there(path: Path) -> str | None:
    return _read(path).decode("utf-8", "replace") if path.exists() else None


def read_digests(folder: Path) -> dict[str, str]:
    """Digests by file name."""
    found = {}
    for number, line in enumerate(_read(folder / DIGESTS).decode("utf-8", "replace").splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name or Path(name).name != name:
            raise BenchError(f"{folder / DIGESTS}, line {number}: not a digest and the name of a file")
        found[name] = digest
    return found


def file_digest(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read_samples(path: Path) -> Iterator[RequestSample]:
    decoder = msgspec.json.Decoder(RequestSample)
    for number, line in enumerate(_read(path).splitlines(), 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BenchError(f"{path}, line {number}: not a sample: {error}") from None


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except msgspec.DecodeError as error:
        raise BenchError(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from None


def _pretty(value: Struct | Sequence[Struct]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
