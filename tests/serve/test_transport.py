"""Bytes on the wire: headers, framing, ids, paths, disconnects."""

from __future__ import annotations

import json
import socket
import struct

import httpx
import pytest
from server_process import ServerProcess, wait_for
from tiny_model import ENDLESS, MODEL
from wire import chunks, connection, raw_events, read_answer, request_bytes

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
LONG = {**ASK, "max_tokens": ENDLESS, "ignore_eos": True}


def test_t1_streams_and_answers_name_their_content_type(server: ServerProcess) -> None:
    with httpx.stream(
        "POST", server.url + "/v1/chat/completions", json={**ASK, "stream": True}, timeout=60
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        response.read()
    assert server.post("/v1/chat/completions", ASK).headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_t2_each_event_is_one_line_of_json_and_done_is_last(server: ServerProcess, path: str) -> None:
    body = ASK if "chat" in path else {"model": MODEL, "prompt": "Hello", "max_tokens": 8}
    *events, done = raw_events(server, path, body)
    assert done == "data: [DONE]"
    for event in events:
        assert event.startswith("data: ") and "\n" not in event
        assert isinstance(json.loads(event.removeprefix("data: ")), dict)


def test_t4_all_chunks_of_a_stream_share_id_time_and_model(server: ServerProcess) -> None:
    for path, body in (("/v1/chat/completions", ASK), ("/v1/completions", {"prompt": "Hello"})):
        seen = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks(server, path, body)}
        assert len(seen) == 1


def test_t5_no_chunk_holds_half_a_character(server: ServerProcess) -> None:
    """Random weights draw bytes of broken characters; what the whole text has of them the stream has too, no more."""
    for seed in range(8):
        body = {"prompt": "naïve 你好", "max_tokens": 64, "seed": seed, "ignore_eos": True}
        streamed = [choice["text"] for chunk in chunks(server, "/v1/completions", body) for choice in chunk["choices"]]
        whole = server.post("/v1/completions", body).json()["choices"][0]["text"]
        assert "".join(streamed) == whole


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({**ASK, "model": "gpt-9"}, 404),
        ({**ASK, "messages": [{"role": "user", "content": "a b " * 9000}]}, 400),
        ({**ASK, "temperature": 9}, 400),
        ({**ASK, "logit_bias": {"99999": 1}}, 400),
    ],
)
def test_t6_what_fails_before_the_first_token_is_a_status(server: ServerProcess, body: dict, status: int) -> None:
    answer = server.post("/v1/chat/completions", {**body, "stream": True})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_t8_a_client_that_goes_away_frees_what_its_request_held(
    endless: ServerProcess, stream: bool, reset: bool
) -> None:
    before = endless.wait_until_idle()['trivium_requests_ended_total{end="cancelled"}']
    with connection(endless) as sock:
        sock.sendall(request_bytes("/v1/chat/completions", {**LONG, "stream": stream}))
        if stream:
            assert b"200 OK" in sock.recv(4096)
        wait_for(lambda: endless.metrics()["trivium_running_sequences"] or None)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    after = endless.wait_until_idle()
    assert after['trivium_requests_ended_total{end="cancelled"}'] == before + 1


def test_t8_a_pipelined_client_that_goes_away_is_noticed_too(endless: ServerProcess) -> None:
    endless.wait_until_idle()
    with connection(endless) as sock:
        sock.sendall(request_bytes("/v1/chat/completions", LONG) * 2)
        wait_for(lambda: endless.metrics()["trivium_running_sequences"] or None)
    endless.wait_until_idle()


def test_t9_request_ids_come_back(server: ServerProcess) -> None:
    for path in ("/v1/models", "/nowhere"):
        assert server.get(path, headers={"x-request-id": "my-id-1"}).headers["x-request-id"] == "my-id-1"
        assert server.get(path).headers["x-request-id"].startswith("req_")
    unshowable = server.get("/v1/models", headers={"x-request-id": "a" * 5000})
    assert unshowable.headers["x-request-id"].startswith("req_")
    completion = server.openai().chat.completions.create(**ASK)
    assert completion._request_id


def test_t10_unknown_fields_are_ignored_and_null_is_absent(server: ServerProcess) -> None:
    optional = [
        "temperature",
        "top_p",
        "n",
        "stop",
        "stream",
        "stream_options",
        "max_tokens",
        "logit_bias",
        "tools",
        "seed",
    ]
    body = {**ASK, **dict.fromkeys(optional), "max_tokens": 4, "no_such_field": {"a": [1]}}
    assert server.post("/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"text"', b"null", b"1", b"\xff\xfe", b'{"messages": NaN}'])
def test_t11_a_body_that_is_no_json_object_is_the_clients_error(server: ServerProcess, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        answer = server.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {"content-encoding": "gzip"}])
def test_t11_a_body_of_another_kind_is_refused_as_such(server: ServerProcess, headers: dict[str, str]) -> None:
    answer = server.post("/v1/chat/completions", ASK, headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1//models", "//v1/models", "/v1/models/"])
def test_t12_paths_without_v1_or_with_doubled_slashes_are_the_same(server: ServerProcess, path: str) -> None:
    assert server.get(path).json() == server.get("/v1/models").json()


def test_t12_posts_too(server: ServerProcess) -> None:
    for path in ("/chat/completions", "/v1//chat/completions", "/completions"):
        body = ASK if "chat" in path else {"prompt": "Hello", "max_tokens": 2}
        assert server.post(path, body).status_code == 200


def test_one_connection_serves_many_requests(server: ServerProcess) -> None:
    with connection(server) as sock:
        for _ in range(3):
            sock.sendall(request_bytes("/v1/chat/completions", ASK))
            status, headers, body = read_answer(sock)
            assert (status, headers.get("connection")) == (200, None)
            assert json.loads(body)["choices"]
