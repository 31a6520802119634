"""Anthropic's Messages: its official client, and the rules of its contract, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from parrot_server import says
from server_process import ServerProcess
from tiny_model import CONTEXT, MODEL
from wire import raw_events

PATH = "/v1/messages"
WEATHER = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>'
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def claude(parrot: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=parrot.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def body(answer: str, **fields: Any) -> dict[str, Any]:
    return {"model": "parrot", "max_tokens": 1000, "messages": says(answer), **fields}


def ask(server: ServerProcess, answer: str, **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, body(answer, **fields))
    assert response.status_code == 200, response.text
    return response.json()


def events(server: ServerProcess, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Each event's data, after its name was found to be the same as its type."""
    found = []
    for event in raw_events(server, PATH, asked):
        name, data = event.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        found.append(payload)
    return found


def refusal(response: httpx.Response) -> tuple[int, str, str]:
    payload = response.json()
    assert payload["type"] == "error"
    assert payload["request_id"] == response.headers["x-request-id"]
    assert set(payload["error"]) == {"type", "message"}
    return response.status_code, payload["error"]["type"], payload["error"]["message"]


# --- the official client ----------------------------------------------------------------------------------------------


def test_the_client_chats(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(**body("Hello, you."))
    (block,) = message.content
    assert block.type == "text" and block.text == "Hello, you."
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")


def test_the_clients_stream_adds_up_to_what_is_answered_whole(claude: anthropic.Anthropic) -> None:
    asked = body(f"<think>Hm, a city.</think>Let me see.\n{CALL}\n{CALL_NOW}", tools=[WEATHER, NOW])
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()

    def shown(message: Any) -> list[dict[str, Any]]:
        return [block.model_dump(exclude={"id", "parsed_output", "caller"}) for block in message.content]

    assert shown(streamed) == shown(whole)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole.content[2].input == {"city": "Zürich 🙂"}
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_the_client_gets_text_as_it_comes(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(**body("one two three")) as stream:
        pieces = list(stream.text_stream)
    assert "".join(pieces) == "one two three"


def test_a8_counted_tokens_are_those_of_the_prompt(claude: anthropic.Anthropic) -> None:
    asked = body("yes", system="Be brief.", tools=[WEATHER])
    message = claude.messages.create(**asked)
    del asked["max_tokens"]
    counted = claude.messages.count_tokens(**asked).input_tokens
    assert counted == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_a9_models_are_listed_in_anthropics_shape(claude: anthropic.Anthropic, parrot: ServerProcess) -> None:
    page = claude.models.list()
    (model,) = page.data
    assert (model.id, model.type, page.has_more, page.first_id, page.last_id) == (
        "parrot", "model", False, "parrot", "parrot",
    )  # fmt: skip
    assert claude.models.retrieve("parrot").id == "parrot"
    assert parrot.get("/v1/models").json()["object"] == "list"


def test_a7_the_client_raises_what_it_has_a_name_for(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(**{**body("x"), "model": "claude-9"})
    assert "claude-9" in str(caught.value)
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(**{**body("x"), "max_tokens": 0})


def test_a_tool_that_must_be_used_is_used_rightly(server: ServerProcess) -> None:
    """The tiny model knows nothing: the grammar makes the call."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        tool = {
            "name": "pick",
            "input_schema": {
                "type": "object",
                "properties": {"fruit": {"enum": ["apple", "pear"]}},
                "required": ["fruit"],
                "additionalProperties": False,
            },
        }
        for choice in ({"type": "any"}, {"type": "tool", "name": "pick"}):
            message = client.messages.create(
                model=MODEL,
                max_tokens=300,
                messages=[{"role": "user", "content": "Pick a fruit."}],
                tools=[tool],
                tool_choice={**choice, "disable_parallel_tool_use": True},
            )
            (call,) = [block for block in message.content if block.type == "tool_use"]
            assert call.name == "pick" and call.input["fruit"] in ("apple", "pear")
            assert message.stop_reason == "tool_use"


def test_an_answer_keeps_to_its_schema(server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "schema": schema}
    asked = {"model": MODEL, "max_tokens": 300, "messages": [{"role": "user", "content": "How large?"}]}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        (block,) = server.post(PATH, {**asked, **fields}).json()["content"]
        assert json.loads(block["text"])["size"] in ("small", "large")


# --- the contract -----------------------------------------------------------------------------------------------------


def test_a1_max_tokens_is_required_and_what_is_unknown_is_not_minded(parrot: ServerProcess) -> None:
    asked = body("hi", metadata={"user_id": "x"}, container=None, betas=["y"])
    asked["messages"] = [
        {"role": "user", "content": [{"type": "text", "text": "first", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "?"}, {"type": "text", "text": "ok"}]},
        {"role": "system", "content": "mind this"},
        {
            "role": "user",
            "content": [{"type": "novelty", "what": 1}, {"type": "text", "text": says("hi")[0]["content"]}],
        },
    ]
    asked["system"] = [{"type": "text", "text": "Be brief."}]
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-2025", "x-api-key": "k"}
    response = parrot.post(PATH, asked, headers=headers)
    assert response.status_code == 200, response.text
    del asked["max_tokens"]
    status, kind, message = refusal(parrot.post(PATH, asked))
    assert (status, kind) == (400, "invalid_request_error") and "max_tokens" in message


def test_a1_history_reaches_the_template_whole(parrot: ServerProcess) -> None:
    """Thinking, calls and results: the parrot's template shows them all, and the count tells."""

    def count(messages: list[dict[str, Any]]) -> int:
        return parrot.post(f"{PATH}/count_tokens", {"model": "parrot", "messages": messages}).json()["input_tokens"]

    call = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"zone": "UTC"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "12:00"}]}
    question = {"role": "user", "content": "When?"}
    said = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Ask.", "signature": "s"}, call]}
    told = {"role": "user", "content": [result, {"type": "text", "text": "And?"}]}
    history = [
        {"role": "user", "content": "When?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Ask.",
            "tool_calls": [{"id": "toolu_1", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "12:00"},
        {"role": "user", "content": "And?"},
    ]
    rendered = parrot.post("/v1/chat/completions/render", {"messages": history}).json()
    assert count([question, said, told]) == rendered["count"]


@pytest.mark.parametrize(
    ("block", "word"),
    [
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}, "images"),
        ({"type": "document", "source": {"type": "url", "url": "http://x"}}, "documents"),
        ({"type": "text"}, "text"),
    ],
)
def test_a1_what_a_text_model_cannot_take_is_refused_by_name(
    parrot: ServerProcess, block: dict[str, Any], word: str
) -> None:
    asked = body("x", messages=[{"role": "user", "content": [block]}])
    status, kind, message = refusal(parrot.post(PATH, asked))
    assert (status, kind) == (400, "invalid_request_error") and word in message


def test_a2_an_answer_has_every_field(parrot: ServerProcess) -> None:
    message = ask(parrot, "Hello.")
    assert message["id"].startswith("msg_")
    assert set(message) == {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
    assert (message["type"], message["model"], message["stop_sequence"]) == ("message", "parrot", None)
    assert all(type(count) is int for count in message["usage"].values())


def test_a2_an_empty_answer_has_an_empty_list_of_content(parrot: ServerProcess) -> None:
    assert ask(parrot, "")["content"] == []


def test_a3_each_end_has_its_reason(parrot: ServerProcess, server: ServerProcess) -> None:
    stopped = ask(parrot, "one STOP two", stop_sequences=["STOP"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "STOP")
    assert stopped["content"][0]["text"] == "one "
    assert ask(parrot, "one two three", max_tokens=3)["stop_reason"] == "max_tokens"
    assert ask(parrot, CALL, tools=[WEATHER])["stop_reason"] == "tool_use"


def test_a3_a_full_context_is_told_apart_from_a_reached_limit(parrot: ServerProcess) -> None:
    text = "x" * 2040  # a token each, twice: in the prompt and in the answer
    assert ask(parrot, text, max_tokens=10_000)["stop_reason"] == "model_context_window_exceeded"


def test_a4_a5_a6_events_come_in_their_order(parrot: ServerProcess) -> None:
    found = events(parrot, body(f"<think>Hm.</think>Well:\n{CALL}", tools=[WEATHER]))
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start" and kinds.count("message_start") == 1
    assert kinds[-2:] == ["message_delta", "message_stop"]
    start = found[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] > 0
    assert start["usage"]["output_tokens"] == 0

    open_block, blocks = None, []
    for event in found[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_block is None and event["index"] == len(blocks)
                open_block = event["index"]
                blocks.append((event["content_block"], []))
            case "content_block_delta":
                assert event["index"] == open_block
                blocks[-1][1].append(event["delta"])
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
    assert open_block is None
    thinking, text, call = blocks
    assert thinking[0]["thinking"] == "" and text[0]["text"] == "" and call[0]["input"] == {}
    assert [delta["type"] for delta in thinking[1]][-1] == "signature_delta"
    assert {delta["type"] for delta in thinking[1][:-1]} == {"thinking_delta"}
    assert "".join(delta["thinking"] for delta in thinking[1][:-1]) == "Hm."
    assert "".join(delta["text"] for delta in text[1]) == "Well:"
    assert json.loads("".join(delta["partial_json"] for delta in call[1])) == {"city": "Zürich 🙂"}
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize("answer", [CALL, "<think>Hm.</think>"])
def test_a5_a_message_starts_before_calls_and_thinking(parrot: ServerProcess, answer: str) -> None:
    kinds = [event["type"] for event in events(parrot, body(answer, tools=[WEATHER]))]
    assert kinds[:2] == ["message_start", "content_block_start"]


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"model": "other"}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": "hello"}, 400, "invalid_request_error"),
        ({"temperature": 3}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, 400, "invalid_request_error"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, 400, "invalid_request_error"),
        ({"output_format": {"type": "text"}}, 400, "invalid_request_error"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error"),
    ],
)
def test_a7_errors_have_anthropics_shape(parrot: ServerProcess, change: dict[str, Any], status: int, kind: str) -> None:
    assert refusal(parrot.post(PATH, {**body("x"), **change}))[:2] == (status, kind)
    assert refusal(parrot.post(PATH, {**body("x"), **change, "stream": True}))[:2] == (status, kind)


def test_a7_a_prompt_that_does_not_fit_is_refused_with_the_numbers(server: ServerProcess) -> None:
    asked = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "z" * (CONTEXT * 4)}]}
    status, kind, message = refusal(server.post(PATH, {**asked, "stream": True}))
    assert (status, kind) == (400, "invalid_request_error") and str(CONTEXT) in message


def test_a7_other_routes_answer_anthropics_clients_in_their_shape(parrot: ServerProcess) -> None:
    version = {"anthropic-version": "2023-06-01"}
    assert refusal(parrot.get("/v1/nothing", headers=version))[:2] == (404, "not_found_error")
    assert refusal(parrot.get(PATH))[:2] == (405, "invalid_request_error")
    assert parrot.get("/v1/nothing").json()["error"]["code"] == "route_not_found"


def test_a10_no_empty_text_is_sent(parrot: ServerProcess) -> None:
    assert [block["type"] for block in ask(parrot, CALL, tools=[WEATHER])["content"]] == ["tool_use"]


def test_a11_input_tokens_and_cached_tokens_add_up(parrot: ServerProcess) -> None:
    asked = body("again", system="A long introduction. " * 20)
    first = parrot.post(PATH, asked).json()["usage"]
    second = parrot.post(PATH, asked).json()["usage"]
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert second["cache_read_input_tokens"] > 0
    assert sum(first[name] for name in names) == sum(second[name] for name in names)


def test_thinking_is_turned_on_and_off(parrot: ServerProcess) -> None:
    """With thinking the parrot's template opens it, so that all until its end is thought."""
    on = ask(parrot, "Hm.</think>Yes.", thinking={"type": "enabled", "budget_tokens": 900})
    assert [block["type"] for block in on["content"]] == ["thinking", "text"]
    assert on["content"][0]["signature"]
    kept = ask(parrot, "Hm.</think>Yes.", thinking={"type": "adaptive", "display": "omitted"})
    assert [block["type"] for block in kept["content"]] == ["text"]
    off = ask(parrot, "Yes.", thinking={"type": "disabled"})
    assert [block["type"] for block in off["content"]] == ["text"]


def test_an_answer_that_was_begun_is_gone_on_with(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one, two,"}]
    counted = server.post(f"{PATH}/count_tokens", {"model": MODEL, "messages": messages}).json()["input_tokens"]
    rendered = server.post(
        "/v1/chat/completions/render",
        {"messages": messages, "continue_final_message": True, "add_generation_prompt": False},
    ).json()
    assert counted == rendered["count"] and rendered["prompt"].endswith("one, two,")


def test_a_client_that_leaves_gives_back_what_its_message_held(server: ServerProcess) -> None:
    asked = {"model": MODEL, "max_tokens": 4000, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    with httpx.stream("POST", server.url + PATH, json=asked, timeout=60) as response:
        next(response.iter_lines())
    server.wait_until_idle()
