"""What parsers dislike, and what becomes of it. test_fuzz.py sends all the rest."""

from __future__ import annotations

from server_process import ServerProcess
from tiny_model import MODEL

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
JSON = {"content-type": "application/json"}
ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


def test_json_nested_ten_thousand_deep_is_refused(server: ServerProcess) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        deep = opening * 10_000 + "1" + closing * 10_000
        for body in (deep, f'{{"messages": {deep}}}', f'{{"prompt": {deep}}}', f'{{"unknown": {deep}}}'):
            for route in ROUTES:
                assert server.post(route, content=body, headers=JSON).status_code == 400


def test_nul_bytes_are_text_like_any_other(server: ServerProcess) -> None:
    assert server.post("/v1/completions", {"prompt": "a\0b", "max_tokens": 1, "stop": ["\0"]}).status_code == 200
    messages = [{"role": "user", "content": "\0", "name": "\0"}]
    assert server.post("/v1/chat/completions", {**ASK, "messages": messages}).status_code == 200


def test_half_a_surrogate_pair_is_refused(server: ServerProcess) -> None:
    for body in (
        r'{"prompt": "\ud800"}',
        r'{"prompt": "a\udc00b"}',
        r'{"prompt": "x", "stop": "\ud800 and more text"}',
    ):
        assert server.post("/v1/completions", content=body, headers=JSON).status_code == 400


def test_surrogates_in_raw_utf8_are_refused(server: ServerProcess) -> None:
    assert server.post("/v1/completions", content=b'{"prompt": "\xed\xa0\x80"}', headers=JSON).status_code == 400
