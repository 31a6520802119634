"""Every answer and every chunk of chats and completions conforms to OpenAI's OpenAPI document."""

from __future__ import annotations

from typing import Any

import pytest
from openapi_schemas import assert_conforms
from parrot_server import says
from server_process import ServerProcess
from wire import chunks

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>{"name": "now", "arguments": {"zone": "é"}}</tool_call>'
SAID = f"<think>\nHm.\n</think>\n\nWait.\n{CALL}\n{CALL}"

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"messages": says("Hello.")},
    "empty": {"messages": says("")},
    "calls": {"messages": says(SAID), "tools": TOOLS},
    "calls, one": {"messages": says(SAID), "tools": TOOLS, "parallel_tool_calls": False, "n": 3},
    "functions": {"messages": says(CALL), "functions": [TOOLS[0]["function"]]},
    "logprobs": {"messages": says(SAID), "tools": TOOLS, "logprobs": True, "top_logprobs": 1, "n": 2},
    "cut": {"messages": says(SAID), "tools": TOOLS, "max_tokens": 60},
    "stopped": {"messages": says("one two three"), "stop": "two"},
    "prompt logprobs": {"messages": says("Hello."), "prompt_logprobs": 0},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_chat_completion_conforms(parrot: ServerProcess, name: str) -> None:
    answer = parrot.post(CHAT, REQUESTS[name])
    assert answer.status_code == 200, answer.text
    assert_conforms(answer.json(), "CreateChatCompletionResponse")


@pytest.mark.parametrize(
    "usage", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "prompt logprobs"])
def test_every_chunk_of_a_chat_conforms(parrot: ServerProcess, name: str, usage: dict[str, bool] | None) -> None:
    for chunk in chunks(parrot, CHAT, {**REQUESTS[name], "stream_options": usage}):
        if chunk.get("usage") is None:  # null where it is still to come, says the prose, though the schema has no null
            chunk.pop("usage", None)
        assert_conforms(chunk, "CreateChatCompletionStreamResponse")


PROMPT = {"prompt": says("Hello there.")[0]["content"], "max_tokens": 20}


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"logprobs": 0, "n": 2}, {"echo": True}, {"max_tokens": 3}])
def test_completions_and_their_chunks_conform(parrot: ServerProcess, fields: dict[str, Any]) -> None:
    answer = parrot.post(COMPLETIONS, {**PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    assert_conforms(answer.json(), "CreateCompletionResponse")
    for chunk in chunks(parrot, COMPLETIONS, {**PROMPT, **fields}):
        for choice in chunk["choices"]:  # the schema is of whole answers, in which every choice has ended
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert_conforms(chunk, "CreateCompletionResponse")


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": says("x"), "model": "another"},
        {"messages": says("x"), "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "later"}}},
        {"messages": says("x" * 5000)},
        [],
    ],
)
def test_refusals_conform(parrot: ServerProcess, body: object) -> None:
    answer = parrot.post(CHAT, body)
    assert 400 <= answer.status_code < 500
    assert_conforms(answer.json(), "ErrorResponse")
