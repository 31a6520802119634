"""What becomes of the lines of a batch's input file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from trivium.serve.batch.input import BatchInputError, read_batch_input
from trivium.serve.limits import Limits

URL = "/v1/completions"


def line(custom_id: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": custom_id}, **fields}


def read(path: Path, *lines: Any, limits: Limits | None = None):
    texts = (item if isinstance(item, bytes) else json.dumps(item).encode() for item in lines)
    path.write_bytes(b"\n".join(texts))
    return read_batch_input(path, "batch_1", URL, limits or Limits())


def test_requests_are_found_again_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    found = read(path, line("ä"), b"", line("b"), b"  ")
    data = path.read_bytes()
    read_back = {
        request.custom_id: json.loads(data[request.start : request.start + request.length])
        for request in found.requests
    }
    assert read_back == {"ä": line("ä"), "b": line("b")}
    assert sorted(request.line for request in found.requests) == [1, 3]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"not json", "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (b'"\xff"', "invalid_json_line"),
        (b"[" * 100_000, "invalid_json_line"),
        ({"custom_id": "x"}, "invalid_json_line"),
        (line("x", body=[]), "invalid_json_line"),
        (line("", body={}), "invalid_custom_id"),
        (line("x" * 513), "invalid_custom_id"),
        (line("good"), "duplicate_custom_id"),
        (line("x", method="GET"), "invalid_method"),
        (line("x", url="/v1/chat/completions"), "mismatched_url"),
        (line("x", body={"stream": True}), "invalid_request"),
        (line("x", body={"background": True}), "invalid_request"),
    ],
)
def test_m6_a_bad_line_goes_to_the_error_file_and_does_not_fail_the_batch(tmp_path: Path, bad: Any, code: str) -> None:
    found = read(tmp_path / "in.jsonl", line("good"), bad)
    assert [request.custom_id for request in found.requests] == ["good"]
    (entry,) = found.bad_lines
    written = json.loads(entry.result)
    assert written["error"]["code"] == code
    assert written["error"]["message"].startswith("line 2: ")
    assert written["response"] is None


def test_a_file_without_a_request_fails_with_the_reasons_by_line(tmp_path: Path) -> None:
    with pytest.raises(BatchInputError) as caught:
        read(tmp_path / "in.jsonl", b"x", line("a", method="PUT"))
    assert [(error.line, error.code) for error in caught.value.errors] == [
        (1, "invalid_json_line"),
        (2, "invalid_method"),
    ]
    with pytest.raises(BatchInputError, match="no requests"):
        read(tmp_path / "in.jsonl", b"", b" ")


def test_too_many_requests_fail_with_the_number(tmp_path: Path) -> None:
    with pytest.raises(BatchInputError, match="2 requests at most"):
        read(tmp_path / "in.jsonl", line("a"), line("b"), line("c"), limits=Limits(batch_requests=2))


def test_requests_with_a_shared_beginning_run_together(tmp_path: Path) -> None:
    systems = [f"You are assistant number {number}. " + "Be kind. " * 100 for number in range(3)]
    lines = [
        line(f"{number}", body={"messages": [{"role": "system", "content": systems[number % 3]}, {"n": number}]})
        for number in range(30)
    ]
    order = [int(request.custom_id) % 3 for request in read(tmp_path / "in.jsonl", *lines).requests]
    changes = sum(before != after for before, after in itertools.pairwise(order))
    assert changes == 2
