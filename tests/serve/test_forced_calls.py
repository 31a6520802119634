"""Calls that must be made: with any model, in the dialect's form, with arguments of the function's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from server_process import ServerProcess
from tiny_model import MODEL
from wire import chunks

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "pages": {"type": "integer", "minimum": 1, "maximum": 999},
        "kind": {"enum": ["novel", "poem"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["title", "pages", "kind", "tags"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "add_book", "parameters": BOOK}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "add_book"}}
SCHEMAS: dict[str, Any] = {"add_book": BOOK, "now": {"type": "object", "maxProperties": 0}}


def ask(server: ServerProcess, **fields: object) -> dict[str, Any]:
    answer = server.post(PATH, {"messages": USER, "tools": TOOLS, "max_tokens": 400, "temperature": 1, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_calls(choice: dict[str, Any]) -> list[str]:
    """The names of the functions that were called, each with arguments of its schema."""
    assert choice["message"]["content"] is None
    for call in choice["message"]["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return [call["function"]["name"] for call in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("seed", range(4))
def test_c17_a_required_call_is_made_and_its_arguments_validate(server: ServerProcess, seed: int) -> None:
    (choice,) = ask(server, tool_choice="required", parallel_tool_calls=False, seed=seed)["choices"]
    assert len(check_calls(choice)) == 1
    assert choice["finish_reason"] == "tool_calls"


def test_c17_s10_a_named_function_is_the_one_that_is_called(server: ServerProcess) -> None:
    for choice in ask(server, tool_choice=NAMED, n=3, seed=1)["choices"]:
        assert check_calls(choice) == ["add_book"]
        assert choice["finish_reason"] == "stop"


def test_c16_allowed_tools_may_be_required(server: ServerProcess) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"name": "now"}]}}
    (choice,) = ask(server, tool_choice=allowed, parallel_tool_calls=False)["choices"]
    assert check_calls(choice) == ["now"]


def test_c17_forced_calls_stream_as_they_are_made(server: ServerProcess) -> None:
    fields = {"messages": USER, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 400, "seed": 2}
    whole = ask(server, tool_choice=NAMED, seed=2)["choices"][0]["message"]["tool_calls"][0]["function"]
    deltas = [
        call["function"]["arguments"]
        for chunk in chunks(server, PATH, fields)
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert "".join(deltas) == whole["arguments"]


def test_a_function_call_by_its_older_name_is_forced_too(server: ServerProcess) -> None:
    functions = [tool["function"] for tool in TOOLS]
    (choice,) = ask(server, tools=None, functions=functions, function_call={"name": "add_book"})["choices"]
    assert choice["message"]["function_call"]["name"] == "add_book"
    jsonschema.validate(json.loads(choice["message"]["function_call"]["arguments"]), BOOK)


def test_a_schema_that_cannot_be_obeyed_is_refused_by_name(server: ServerProcess) -> None:
    wrong = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "not": {"required": ["a"]}}},
    }
    answer = server.post(PATH, {"messages": USER, "tools": [wrong], "tool_choice": "required"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools" and "not" in answer.json()["error"]["message"]


def test_with_tools_a_schema_for_the_answer_leaves_the_choice_of_calling(server: ServerProcess) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}, "additionalProperties": False}},
    }
    for seed in range(4):
        message = ask(server, response_format=form, seed=seed)["choices"][0]["message"]
        assert message.get("tool_calls") or json.loads(message["content"]) == {}


def test_strict_functions_leave_the_model_free_to_answer(server: ServerProcess) -> None:
    strict = {"type": "function", "function": {"name": "add_book", "parameters": BOOK, "strict": True}}
    (choice,) = ask(server, tools=[strict], max_tokens=20, min_tokens=10, seed=1)["choices"]
    assert choice["message"]["content"]


def test_the_openai_client_parses_a_forced_call(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "add_book", "parameters": BOOK, "strict": True}}
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=USER,
        tools=[tool],
        tool_choice=NAMED,
        max_tokens=400,  # type: ignore[arg-type, list-item]
    )
    assert answer.choices[0].message.tool_calls
    jsonschema.validate(answer.choices[0].message.tool_calls[0].function.parsed_arguments, BOOK)


@pytest.fixture(scope="module")
def thinker(tiny_model: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(str(tiny_model), "--served-model-name", MODEL, "--reasoning-parser", "think")
    yield process
    assert process.stop() == 0


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_a_forced_call_may_be_thought_about_before(thinker: ServerProcess, seed: int) -> None:
    """The prompt began to think; the budget ends that, in the middle of whatever the model was saying, and then the call
    must come. A character that was begun is said to its end, which takes three tokens at most."""
    fields = {"chat_template_kwargs": {"suffix": "<think>\n"}, "thinking_budget": 9, "tool_choice": NAMED}
    answer = ask(thinker, n=12, seed=seed, **fields)
    for choice in answer["choices"]:
        assert check_calls(choice) == ["add_book"]
    assert 9 <= answer["usage"]["completion_tokens_details"]["reasoning_tokens"] / 12 <= 12
