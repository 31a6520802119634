"""The one envelope, its types and statuses, and what clients make of them."""

from __future__ import annotations

import re

import openai
import pytest
from server_process import ServerProcess
from tiny_model import CONTEXT, MODEL
from wire import connection, read_answer, request_bytes

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
TYPES = {"invalid_request_error", "not_found_error", "rate_limit_error", "server_error"}


def failures(server: ServerProcess) -> list:
    return [
        server.post("/v1/chat/completions", {**ASK, "temperature": 3}),
        server.post("/v1/chat/completions", {**ASK, "model": "other"}),
        server.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}),
        server.post("/v1/completions", {"prompt": []}),
        server.get("/no/such/route"),
        server.get("/v1/chat/completions"),
        server.get("/v1/models/no/such/model"),
    ]


def test_e1_e2_e3_e4_e5_every_error_has_the_one_envelope(server: ServerProcess) -> None:
    for answer in failures(server):
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()) == {"error"}
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and error["message"]
        assert error["type"] in TYPES
        assert error["param"] is None or isinstance(error["param"], str)
        assert error["code"] is None or isinstance(error["code"], str)


def test_e6_statuses_say_what_is_wrong(server: ServerProcess) -> None:
    assert [answer.status_code for answer in failures(server)] == [400, 404, 400, 400, 404, 405, 404]
    assert "POST" in server.get("/v1/chat/completions").headers["allow"]


def test_e7_a_wrong_request_is_sent_exactly_once(server: ServerProcess) -> None:
    before = server.metrics()['trivium_requests_ended_total{end="invalid"}']
    with server.openai() as client, pytest.raises(openai.BadRequestError):
        client.with_options(max_retries=2).chat.completions.create(**{**ASK, "temperature": 3})
    assert server.metrics()['trivium_requests_ended_total{end="invalid"}'] == before + 1


@pytest.mark.parametrize("stream", [True, False])
def test_e9_a_prompt_beyond_the_context_says_so_as_agents_expect(server: ServerProcess, stream: bool) -> None:
    long = "a b " * CONTEXT
    for path, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}, "messages"),
        ("/v1/completions", {"prompt": long}, "prompt"),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": CONTEXT + 1}, "prompt"),
    ):
        answer = server.post(path, {**body, "stream": stream})
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == param
        assert f"this model's maximum context length is {CONTEXT} tokens" in error["message"]  # as litellm looks for it


def test_e9_a_text_that_cannot_fit_is_refused_without_tokenizing_it(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", {"prompt": "x" * (300 * CONTEXT)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_e10_an_unknown_model_is_not_found_by_name(server: ServerProcess) -> None:
    with server.openai() as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**ASK, "model": "gpt-4o"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id


def test_e11_errors_tell_nothing_of_the_machine(server: ServerProcess) -> None:
    for answer in failures(server):
        assert not re.search(r"Traceback|/home/|/tmp/|/root/|\.py\b|0x[0-9a-f]{6}|msgspec", answer.text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", True), ("temperature", [1]), ("temperature", -1), ("top_p", 2), ("top_p", {}),
        ("n", 0), ("n", 129), ("n", 1.5), ("n", 2**70), ("max_tokens", -1), ("max_tokens", "4"), ("max_tokens", 2**63),
        ("stop", 4), ("stop", [1]), ("stop", ""), ("stop", ["a"] * 1000), ("seed", 2**63), ("seed", "x"),
        ("presence_penalty", 3), ("frequency_penalty", -3), ("logit_bias", {"a": 1}), ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "x"}), ("logit_bias", [1]), ("logit_bias", {"100000": 1}), ("stream", "yes"),
        ("stream_options", 3), ("top_k", -2), ("min_p", 2), ("repetition_penalty", 0), ("stop_token_ids", ["a"]),
        ("stop_token_ids", [10**6]), ("allowed_token_ids", []), ("allowed_token_ids", [10**6]), ("bad_words", [1]),
        ("min_tokens", -1), ("prompt_logprobs", -1), ("typical_p", 0), ("cache_salt", 1), ("priority", "high"),
        ("user", 3), ("response_format", {"type": "xml"}), ("response_format", "json"),
        ("guided_json", {"not": {}}), ("guided_regex", 3), ("guided_choice", []), ("regex", "("), ("grammar", 3),
        ("structured_outputs", {}), ("structured_outputs", {"jsn": {}}), ("use_beam_search", True),
    ],
)  # fmt: skip
def test_e6_c24_a_wrong_field_is_named(server: ServerProcess, field: str, value: object) -> None:
    for path, body in (("/v1/chat/completions", ASK), ("/v1/completions", {"prompt": "Hello", "max_tokens": 4})):
        for stream in (False, True):
            answer = server.post(path, {"stream": stream, **body, field: value})
            assert answer.status_code == 400, answer.text
            assert (answer.json()["error"]["param"] or "").startswith(field)


def test_e7_a_request_that_bans_every_token_is_at_fault_itself(server: ServerProcess) -> None:
    answer = server.post("/v1/chat/completions", {**ASK, "allowed_token_ids": [2], "min_tokens": 5, "max_tokens": 9})
    assert answer.status_code == 400, answer.text
    assert "every token is banned" in answer.json()["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_c24_numbers_that_are_none_are_refused(server: ServerProcess, number: str) -> None:
    for field in ("temperature", "top_p", "presence_penalty", "min_p", "repetition_penalty"):
        body = f'{{"prompt": "Hello", "{field}": {number}}}'
        answer = server.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


def test_e6_a_body_beyond_the_limit_is_refused_by_its_size(server: ServerProcess) -> None:
    with connection(server) as sock:
        sock.sendall(
            request_bytes("/v1/completions", b"", "content-length: 99999999999").replace(b"content-length: 0\r\n", b"")
        )
        status, _, body = read_answer(sock)
    assert status == 413
    assert b"body_too_large" in body


def test_e6_a_large_body_is_read_away_so_that_its_sender_sees_the_answer(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", content=b" " * (40 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("line", ["x-filler: " + "a" * 200_000, "\r\n".join(f"x-{i}: 1" for i in range(400))])
def test_headers_beyond_the_limit_are_refused(server: ServerProcess, line: str) -> None:
    with connection(server) as sock:
        sock.sendall(request_bytes("/v1/chat/completions", ASK, line))
        status, _, body = read_answer(sock)
    assert status == 431
    assert b"headers_too_large" in body


def test_headers_without_end_are_cut_off(server: ServerProcess) -> None:
    with connection(server) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nx-filler: ")
        with pytest.raises((ConnectionError, AssertionError, TimeoutError)) as end:
            for _ in range(1000):
                sock.sendall(b"a" * 65536)
        assert not isinstance(end.value, TimeoutError)
    assert server.get("/health").status_code == 200


def test_what_is_no_http_gets_the_envelope_too(server: ServerProcess) -> None:
    for junk in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"NOT HTTP AT ALL\r\n\r\n",
        b"POST /v1/\xff HTTP/1.1\r\n\r\n",
    ):
        with connection(server) as sock:
            sock.sendall(junk)
            status, headers, body = read_answer(sock)
            assert status == 400
            assert headers["x-request-id"].startswith("req_")
            assert b'"error"' in body
