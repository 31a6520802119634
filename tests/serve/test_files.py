"""/v1/files with the official client and without it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openapi_schemas import assert_conforms, without_nulls
from server_process import ServerProcess, wait_for
from wire import connection, read_answer

from trivium.serve.openai.files import HeldFileResponse

DATA = bytes(range(256)) * 20_000  # 5 MB: several pieces on the wire


def upload(server: ServerProcess, **fields: object) -> httpx.Response:
    form = {"purpose": "user_data", **fields}
    return server.post("/v1/files", data=form, files={"file": ("name.bin", b"abc")})


def error_of(answer: httpx.Response) -> dict:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_m6_a_file_comes_back_as_it_was_sent(client: openai.OpenAI) -> None:
    created = client.files.create(file=("data ä.bin", DATA), purpose="user_data")
    assert created.id.startswith("file-")
    assert (created.object, created.bytes, created.filename) == ("file", len(DATA), "data ä.bin")
    assert (created.purpose, created.status) == ("user_data", "processed")
    assert abs(created.created_at - time.time()) < 60
    assert client.files.retrieve(created.id) == created
    assert client.files.content(created.id).read() == DATA
    assert client.files.delete(created.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(created.id)


def test_m6_the_content_is_streamed_and_can_be_resumed(server: ServerProcess, client: openai.OpenAI) -> None:
    file = client.files.create(file=("data.bin", DATA), purpose="user_data")
    answer = server.get(f"/v1/files/{file.id}/content", headers={"range": "bytes=10-19"})
    assert (answer.status_code, answer.content) == (206, DATA[10:20])
    client.files.delete(file.id)


def test_a_file_that_is_deleted_while_it_is_sent_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    response = HeldFileResponse(path, "data.bin")
    path.unlink()
    received: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        received.append(message.get("body", b""))

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "headers": [], "asgi": {"spec_version": "2.4"}}
    asyncio.run(response(scope, receive, send))
    assert b"".join(received) == DATA


def test_files_conform_to_the_specification(server: ServerProcess) -> None:
    created = upload(server).json()
    assert_conforms(without_nulls(created), "OpenAIFile")
    listed = server.get("/v1/files").json()
    assert_conforms({**listed, "data": [without_nulls(file) for file in listed["data"]]}, "ListFilesResponse")
    assert_conforms(server.get("/v1/files?purpose=vision").json(), "ListFilesResponse")
    deleted = httpx.delete(f"{server.url}/v1/files/{created['id']}", timeout=60).json()
    assert_conforms(deleted, "DeleteFileResponse")


def test_files_are_listed_by_purpose_in_pages(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=(f"{number}", b""), purpose="evals").id for number in range(3)]
    assert [file.id for file in client.files.list(purpose="evals", limit=2)] == ids[::-1]
    assert [file.id for file in client.files.list(purpose="evals", order="asc", limit=2).data] == ids[:2]
    for file_id in ids:
        client.files.delete(file_id)


def test_files_expire_when_the_client_said_and_batch_files_after_thirty_days(client: openai.OpenAI) -> None:
    soon = client.files.create(file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600})
    assert soon.expires_at == soon.created_at + 3600
    batch = client.files.create(file=b"x", purpose="batch")
    assert batch.expires_at == batch.created_at + 30 * 86400
    assert client.files.create(file=b"x", purpose="user_data").expires_at is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "world domination"}, "purpose"),
        ({"expires_after[anchor]": "created_at"}, "expires_after"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after"),
    ],
)
def test_a_field_with_a_bad_value_is_named(server: ServerProcess, fields: dict, param: str) -> None:
    assert error_of(upload(server, **fields))["param"] == param


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"", "multipart/form-data", 400),
        (b"", "multipart/form-data; boundary=x", 400),
        (b"--x\r\nnot a header", "multipart/form-data; boundary=x", 400),
        (b"garbage", "multipart/form-data; boundary=x", 400),
        (b"", f"multipart/form-data; boundary={'x' * 5000}", 400),
        (b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n', "multipart/form-data; boundary=x", 400),
        (b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc', "multipart/form-data; boundary=x", 400),
        (b'--x\r\nContent-Disposition: form-data; name="other"; filename="f"\r\n\r\nabc\r\n--x--\r\n', "multipart/form-data; boundary=x", 400),
    ],
)  # fmt: skip
def test_a_broken_form_is_a_clients_error(server: ServerProcess, body: bytes, content_type: str, status: int) -> None:
    answer = server.post("/v1/files", content=body, headers={"content-type": content_type})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_too_many_and_too_large_fields_are_refused(server: ServerProcess) -> None:
    assert "64 fields" in error_of(upload(server, **{f"f{number}": "x" for number in range(80)}))["message"]
    assert "65536 bytes" in error_of(upload(server, extra="x" * 70_000))["message"]


def test_an_upload_that_announces_too_much_is_refused_before_it_comes(server: ServerProcess) -> None:
    head = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=x\r\n"
    with connection(server) as sock:
        sock.sendall(f"{head}content-length: {10**12}\r\n\r\n--x".encode())
        status, _, body = read_answer(sock)
    assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "order=up", "after=file-none"])
def test_a_bad_list_parameter_is_named(server: ServerProcess, query: str) -> None:
    assert error_of(server.get(f"/v1/files?{query}"))["param"] == query.partition("=")[0]


@pytest.mark.parametrize("file_id", ["file-none", "..%2f..%2frecords.sqlite3", "%00", "%ff"])
def test_an_unknown_file_is_404_whatever_it_is_called(server: ServerProcess, file_id: str) -> None:
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        answer = server.get(path)
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["type"] == "not_found_error"


def test_a_client_that_leaves_during_an_upload_leaves_nothing(tiny_model: Path, tmp_path: Path) -> None:
    server = ServerProcess(str(tiny_model), "--dtype", "float32", state_dir=tmp_path)
    try:
        with connection(server) as sock:
            head = (
                "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000\r\n"
                "content-type: multipart/form-data; boundary=x\r\n\r\n"
                '--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            )
            sock.sendall(head.encode() + b"a" * 3_000_000)
        assert json.loads(server.get("/v1/files").text)["data"] == []
        wait_for(lambda: not list((tmp_path / "incoming").iterdir()) or None)
    finally:
        assert server.stop() == 0
    assert "Traceback" not in server.log
