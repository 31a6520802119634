"""Whatever a client sends to the routes that keep something: an answer below 500, and a server that goes on."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_process import ServerProcess
from tiny_model import MODEL

VALID: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/v1/conversations": {"items": [{"role": "user", "content": "x"}]},
    "/v1/conversations/conv_x/items": {"items": []},
    "/v1/batches": {"input_file_id": "file-x", "endpoint": "/v1/responses", "completion_window": "24h"},
}
KEYS = [
    "type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "summary", "encrypted_content",
    "status", "format", "schema", "strict", "effort", "parameters", "mode", "tools", "anchor", "seconds",
]  # fmt: skip
FIELDS = [
    "model", "input", "instructions", "previous_response_id", "conversation", "tools", "tool_choice", "text",
    "reasoning", "truncation", "background", "include", "max_output_tokens", "metadata", "store", "stream",
    "temperature", "top_logprobs", "top_p", "user", "stop", "seed", "logit_bias", "priority", "items", "prompt",
    "chat_template_kwargs", "input_file_id", "endpoint", "completion_window", "output_expires_after",
]  # fmt: skip
WORDS = [
    "", "x", "\0", "message", "function_call", "function_call_output", "reasoning", "item_reference", "user", "assistant",
    "input_text", "output_text", "json_schema", "json_object", "function", "allowed_tools", "auto", "required", "none",
    "24h", "9999d", "gAAA", "🙂", "created_at", MODEL,
]  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-2, 30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """One connection for all: to open one takes longer than most answers."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


SETTINGS = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(
    route=st.sampled_from(sorted(VALID)),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    is_valid=st.booleans(),
)
def test_fields_of_any_kind_never_fail_the_server(http: httpx.Client, route: str, fields: dict, is_valid: bool) -> None:
    body = json.dumps({**(VALID[route] if is_valid else {}), **fields})
    answer = http.post(route, content=body, headers={"content-type": "application/json"})
    assert answer.status_code < 500, (body, answer.text)


@SETTINGS
@given(
    route=st.sampled_from(
        ["/v1/files", "/v1/batches", "/v1/responses/resp_x", "/v1/responses/resp_x/input_items", "/v1/conversations/x/items"]
    ),
    query=st.dictionaries(
        st.sampled_from(["limit", "order", "after", "purpose", "stream", "starting_after", "include"]),
        st.sampled_from(["", "0", "-1", "1e9", "99999999999999999999", "desc", "true", "\0", "\udce4", "x" * 300]),
        max_size=3,
    ),
)  # fmt: skip
def test_queries_of_any_kind_never_fail_the_server(http: httpx.Client, route: str, query: dict) -> None:
    written = urllib.parse.urlencode(query, errors="surrogateescape")
    assert http.get(f"{route}?{written}").status_code < 500


@SETTINGS
@given(name=st.text(max_size=20), route=st.sampled_from(["files", "batches", "responses", "conversations"]))
def test_names_of_any_kind_never_fail_the_server(http: httpx.Client, name: str, route: str) -> None:
    path = f"/v1/{route}/{urllib.parse.quote(name, safe='', errors='replace')}"
    for method in ("GET", "DELETE", "POST"):
        assert http.request(method, path).status_code < 500


@SETTINGS
@given(st.data())
def test_damaged_forms_never_fail_the_server(http: httpx.Client, data: st.DataObject) -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\nContent-Type: x/y\r\n\r\nabc\r\n--b--\r\n'
    )
    damaged = bytearray(form)
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(form) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        damaged[place] = value
    cut = data.draw(st.integers(0, len(form)))
    for body in (bytes(damaged), form[:cut]):
        answer = http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
        assert answer.status_code < 500, body
