"""Whatever a client sends: an answer below 500, and a server that goes on."""

from __future__ import annotations

import json
import random

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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


FIELDS = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "seed",
    "echo",
    "suffix",
    "best_of",
    "tools",
    "tool_choice",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "presence_penalty",
    "frequency_penalty",
    "user",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "add_special_tokens",
    "priority",
    "cache_salt",
    "modalities",
    "tokens",
    "content",
    "truncate_prompt_tokens",
    "parallel_tool_calls",
    "reasoning_effort",
]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-2, 130)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "\0", "none", "auto", "user", "1", "🙂", "text", "<|im_end|>", MODEL])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "1", "function", "include_usage"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=st.sampled_from(ROUTES),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    valid=st.booleans(),
)
def test_fields_of_any_kind_never_fail_the_server(server: ServerProcess, route: str, fields: dict, valid: bool) -> None:
    base = {**ASK, "prompt": "Hello", "tokens": [1]} if valid else {}
    body = json.dumps({**base, **fields})
    answer = server.post(route, content=body, headers=JSON)
    assert answer.status_code < 500, (body, answer.text)


def test_bytes_that_were_json_never_fail_the_server(server: ServerProcess) -> None:
    chance = random.Random(0)
    valid = json.dumps({**ASK, "stop": ["a"], "logit_bias": {"1": 2}}).encode()
    with httpx.Client(timeout=60) as client:
        for _ in range(150):
            damaged = bytearray(valid)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            answer = client.post(server.url + "/v1/chat/completions", content=bytes(damaged), headers=JSON)
            assert answer.status_code < 500, bytes(damaged)


def test_after_all_that_the_engine_holds_nothing(server: ServerProcess) -> None:
    server.wait_until_idle()
    assert server.get("/health").json() == {"status": "ok"}
