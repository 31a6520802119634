"""/v1/responses with the official client and without it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openapi_schemas import assert_conforms, assert_event_conforms
from server_process import ServerProcess, wait_for
from tiny_model import CONTEXT, ENDLESS, MODEL

ASK = {"model": MODEL, "input": "Hello", "max_output_tokens": 8, "temperature": 0}
FEW = 5  # events: there are more, also where all of the text comes in one piece
ON_AND_ON = {"max_output_tokens": ENDLESS, "extra_body": {"ignore_eos": True}}
# The keys that the Open Responses specification wants in every response.
OPEN_RESPONSES_KEYS = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
    "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "max_output_tokens",
    "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
}  # fmt: skip


def ask(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/responses", {**ASK, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server: ServerProcess, status: int = 400, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/responses", {**ASK, **fields})
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def stream(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    with httpx.stream("POST", f"{server.url}/v1/responses", json={**ASK, **fields, "stream": True}, timeout=60) as got:
        assert got.status_code == 200, got.read()
        return read_events(got.read().decode())


def read_events(text: str) -> list[dict[str, Any]]:
    """Each event's JSON; its name must be its type."""
    *blocks, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def prompt_tokens(server: ServerProcess, messages: list[dict[str, str]]) -> int:
    return server.post("/tokenize", {"messages": messages}).json()["count"]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


# --- the answer -------------------------------------------------------------------------------------------------------


def test_r1_r2_r3_a_response_has_every_key_and_conforms(server: ServerProcess) -> None:
    response = ask(server, instructions="Be kind", metadata={"a": "b"}, user="me", ignore_eos=True)
    assert_conforms(response, "Response")
    assert set(response) >= OPEN_RESPONSES_KEYS
    assert response["id"].startswith("resp_") and response["object"] == "response"
    assert (response["model"], response["instructions"], response["metadata"]) == (MODEL, "Be kind", {"a": "b"})
    assert (response["store"], response["previous_response_id"], response["truncation"]) == (True, None, "disabled")
    assert response["text"]["format"] == {"type": "text"}
    (message,) = response["output"]
    assert (message["type"], message["role"]) == ("message", "assistant")
    usage = response["usage"]
    messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hello"}]
    assert usage["input_tokens"] == prompt_tokens(server, messages)
    assert usage["output_tokens"] == 8
    assert usage["total_tokens"] == usage["input_tokens"] + 8


def test_r7_a_cut_response_is_incomplete(server: ServerProcess) -> None:
    response = ask(server, ignore_eos=True)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_a_response_says_what_a_chat_completion_says(server: ServerProcess) -> None:
    chat = server.post(
        "/v1/chat/completions",
        {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0},
    ).json()
    assert text_of(ask(server)) == chat["choices"][0]["message"]["content"]


def test_r4_r6_a_stream_says_what_the_whole_answer_says(server: ServerProcess) -> None:
    events = stream(server, top_logprobs=2)
    for event in events:
        if "response" in event and event["response"]["usage"] is None:
            del event["response"]["usage"]
        assert_event_conforms(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    whole = ask(server, top_logprobs=2)
    assert text_of(events[-1]["response"]) == text_of(whole)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == text_of(whole)
    logprobs = [item for event in deltas for item in event["logprobs"]]
    assert logprobs == whole["output"][0]["content"][0]["logprobs"]
    assert all(len(item["top_logprobs"]) == 2 for item in logprobs)


def test_the_official_client_streams_a_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello", temperature=0, max_output_tokens=2000) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert final.status == "completed"
    assert "".join(pieces) == final.output_text == client.responses.retrieve(final.id).output_text


def test_r8_items_are_taken_as_input(client: openai.OpenAI, server: ServerProcess) -> None:
    response = client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "weather?"},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"sky"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "blue"},
        ],
        max_output_tokens=8,
    )
    prompt = server.post(
        "/tokenize",
        {
            "messages": [
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": {"at": "sky"}}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "blue"},
            ]
        },
    ).json()
    assert response.usage is not None and response.usage.input_tokens == prompt["count"]


def test_r10_tools_that_no_server_can_call_do_not_fail_the_request(server: ServerProcess) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": None, "strict": None}]
    assert ask(server, tools=tools)["tools"] == tools


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": 7}, "input"),
        ({"temperature": 3}, "temperature"),
        ({"min_p": 3}, "min_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"k": "v" * 600}}, "metadata"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_bad_request_is_refused_by_the_clients_name_of_the_field(
    server: ServerProcess, fields: dict, param: str
) -> None:
    assert refusal(server, **fields)["param"] == param


def test_e9_e10_a_long_input_and_an_unknown_model_are_refused_before_a_stream_begins(server: ServerProcess) -> None:
    error = refusal(server, input="word " * CONTEXT, stream=True)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert refusal(server, 404, model="nobody", stream=True)["code"] == "model_not_found"


def test_truncation_drops_the_oldest_messages(server: ServerProcess) -> None:
    turns = [{"role": "user", "content": f"{number} " + "word " * 200} for number in range(40)]
    assert refusal(server, input=turns)["code"] == "context_length_exceeded"
    response = ask(server, input=turns, instructions="stay", truncation="auto")
    assert response["truncation"] == "auto"
    used = response["usage"]["input_tokens"]
    assert CONTEXT - 8 - prompt_tokens(server, turns[:1]) < used <= CONTEXT - 8


def test_counted_input_tokens_are_those_of_the_usage(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK, instructions="Be kind")
    follow: dict[str, Any] = {"model": MODEL, "input": "And?", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(**follow)
    response = client.responses.create(**follow, max_output_tokens=8)
    assert response.usage is not None and counted.input_tokens == response.usage.input_tokens


# --- state ------------------------------------------------------------------------------------------------------------


def test_r8_a_response_follows_another(server: ServerProcess, client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK, instructions="Only for the first")
    second = client.responses.create(**{**ASK, "input": "And?"}, previous_response_id=first.id)
    third = client.responses.create(**{**ASK, "input": "So?"}, previous_response_id=second.id)
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "So?"},
    ]
    assert third.usage is not None and third.usage.input_tokens == prompt_tokens(server, messages)
    assert third.previous_response_id == second.id


def test_a_stored_response_is_retrieved_and_deleted(server: ServerProcess, client: openai.OpenAI) -> None:
    created = ask(server)
    assert server.get(f"/v1/responses/{created['id']}").json() == created
    client.responses.delete(created["id"])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(created["id"])
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(created["id"])
    assert refusal(server, previous_response_id=created["id"])["code"] == "previous_response_not_found"


def test_r8_what_is_not_to_be_stored_is_not(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASK, store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_input_items_are_listed_in_pages(server: ServerProcess, client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": f"turn {number}"} for number in range(5)]
    turns.insert(2, {"role": "assistant", "content": "I see."})
    response = client.responses.create(**{**ASK, "input": turns})
    shown = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
    assert [item.content[0].text for item in shown] == [  # type: ignore[union-attr]
        "turn 0", "turn 1", "I see.", "turn 2", "turn 3", "turn 4",
    ]  # fmt: skip
    assert_conforms(server.get(f"/v1/responses/{response.id}/input_items").json(), "ResponseItemList")


def test_an_item_is_referred_to_by_its_id(server: ServerProcess, client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK)
    again = client.responses.create(**{**ASK, "input": [{"type": "item_reference", "id": first.output[0].id},
                                                       {"role": "user", "content": "x"}]})  # fmt: skip
    messages = [{"role": "assistant", "content": first.output_text}, {"role": "user", "content": "x"}]
    assert again.usage is not None and again.usage.input_tokens == prompt_tokens(server, messages)
    assert refusal(server, 404, input=[{"id": "msg_none"}])["code"] == "item_not_found"


# --- conversations ----------------------------------------------------------------------------------------------------


def test_a_conversation_grows_with_its_responses(server: ServerProcess, client: openai.OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "I am Ada."}], metadata={"a": "b"})
    first = client.responses.create(**ASK, conversation=conversation.id)
    second = client.responses.create(**{**ASK, "input": "And?"}, conversation={"id": conversation.id}, store=False)
    assert first.conversation is not None and first.conversation.id == conversation.id
    texts = [item.content[0].text for item in client.conversations.items.list(conversation.id, order="asc")]  # type: ignore[union-attr]
    assert texts == ["I am Ada.", "Hello", first.output_text, "And?", second.output_text]
    assert_conforms(server.get(f"/v1/conversations/{conversation.id}/items").json(), "ConversationItemList")
    messages = [{"role": "user", "content": text} for text in texts[:2]]
    assert first.usage is not None and first.usage.input_tokens == prompt_tokens(server, messages)


def test_conversations_are_kept_changed_and_deleted(server: ServerProcess, client: openai.OpenAI) -> None:
    conversation = client.conversations.create(metadata={"a": "b"})
    assert_conforms(server.get(f"/v1/conversations/{conversation.id}").json(), "ConversationResource")
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    deleted = httpx.delete(f"{server.url}/v1/conversations/{conversation.id}", timeout=60).json()
    assert_conforms(deleted, "DeletedConversationResource")
    for path in (f"/v1/conversations/{conversation.id}", f"/v1/conversations/{conversation.id}/items"):
        assert server.get(path).json()["error"]["code"] == "conversation_not_found"
    assert refusal(server, 404, conversation=conversation.id)["param"] == "conversation"


def test_items_of_a_conversation_are_added_read_and_deleted(server: ServerProcess, client: openai.OpenAI) -> None:
    conversation = client.conversations.create()
    items: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
        {"role": "assistant", "content": "four"},
    ]
    added = client.conversations.items.create(conversation.id, items=items).data
    assert [item.type for item in added] == [item.get("type", "message") for item in items]
    for item in added:
        shown = server.get(f"/v1/conversations/{conversation.id}/items/{item.id}").json()
        assert_conforms(shown, "ConversationItem")
        assert shown["id"] == item.id
    assert client.conversations.items.delete(added[0].id or "", conversation_id=conversation.id).id == conversation.id
    assert len(client.conversations.items.list(conversation.id).data) == 3
    answer = server.get(f"/v1/conversations/{conversation.id}/items/{added[0].id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "item_not_found")
    answer = server.post(f"/v1/conversations/{conversation.id}/items", {"items": items * 6})
    assert answer.json()["error"]["param"] == "items"


# --- background -------------------------------------------------------------------------------------------------------


def finished(client: openai.OpenAI, response_id: str) -> Any:
    def poll() -> Any:
        response = client.responses.retrieve(response_id)
        return None if response.status in ("queued", "in_progress") else response

    return wait_for(poll)


def test_a_response_is_made_in_the_background(client: openai.OpenAI) -> None:
    created = client.responses.create(**ASK, background=True)
    assert (created.status, created.background) == ("queued", True)
    response = finished(client, created.id)
    assert response.output_text == client.responses.create(**ASK).output_text
    follow = client.responses.create(**ASK, previous_response_id=response.id)
    assert follow.previous_response_id == response.id


def test_a_background_response_is_cancelled_and_gives_all_back(endless: ServerProcess) -> None:
    client = endless.openai()
    created = client.responses.create(**{**ASK, **ON_AND_ON}, background=True)
    wait_for(lambda: True if client.responses.retrieve(created.id).status == "in_progress" else None)
    assert client.responses.cancel(created.id).status == "cancelled"
    assert client.responses.retrieve(created.id).status == "cancelled"
    assert client.responses.cancel(created.id).status == "cancelled"
    endless.wait_until_idle()
    assert "cancelled" in refusal(endless, previous_response_id=created.id)["message"]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(client.responses.create(**ASK).id)


def test_a_background_stream_goes_on_without_its_client_and_is_heard_again(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    body = {**ASK, "max_output_tokens": 300, "ignore_eos": True, "background": True, "stream": True}
    seen: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=60) as got:
        for line in got.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
            if len(seen) == FEW:
                break
    assert [event["type"] for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    path = f"/v1/responses/{seen[0]['response']['id']}?stream=true"
    live = read_events(server.get(f"{path}&starting_after={FEW - 1}").text)  # to its end, wherever it is now
    assert [event["sequence_number"] for event in live] == list(range(FEW, FEW + len(live)))
    assert live[-1]["type"] == "response.incomplete"
    again = read_events(server.get(path).text)
    assert again == seen[:FEW] + live
    for event in again:
        if "response" in event and event["response"]["usage"] is None:
            del event["response"]["usage"]
        assert_event_conforms(event)
    resumed = client.responses.retrieve(seen[0]["response"]["id"], stream=True, starting_after=len(again) - 2)
    assert [event.type for event in resumed] == ["response.incomplete"]


def test_a_response_that_was_not_in_the_background_is_not_streamed_again(server: ServerProcess) -> None:
    answer = server.get(f"/v1/responses/{ask(server)['id']}?stream=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("query", ["starting_after=x", "starting_after=-5", "stream=perhaps"])
def test_a_bad_query_is_named(server: ServerProcess, query: str) -> None:
    answer = server.get(f"/v1/responses/resp_none?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


# --- failures ---------------------------------------------------------------------------------------------------------


def test_r9_an_engine_that_dies_ends_a_stream_with_a_failed_response(own_server: ServerProcess) -> None:
    body = {**ASK, "max_output_tokens": ENDLESS, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{own_server.url}/v1/responses", json=body, timeout=60) as got:
        lines = got.iter_lines()
        while "output_text.delta" not in next(lines):
            pass
        os.kill(own_server.engine_pid, signal.SIGKILL)
        rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    error, failed = rest[-2:]
    assert error["type"] == "error" and error["error"]["message"] == error["message"]
    assert failed["type"] == "response.failed"
    assert_event_conforms(error)
    stored = own_server.get(f"/v1/responses/{failed['response']['id']}").json()
    assert (stored["status"], stored["error"]["code"]) == ("failed", "server_error")


def test_a_client_that_leaves_cancels_its_response(server: ServerProcess) -> None:
    body = {**ASK, "max_output_tokens": 7000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=60) as got:
        next(got.iter_lines())
    server.wait_until_idle()


def test_a_killed_servers_background_responses_are_told_as_failed_by_the_next(
    endless_model: Path, tmp_path: Path
) -> None:
    options = ("--served-model-name", MODEL, "--dtype", "float32")
    first = ServerProcess(str(endless_model), *options, state_dir=tmp_path)
    done = first.openai().responses.create(**ASK)
    created = first.openai().responses.create(**{**ASK, **ON_AND_ON}, background=True)
    first.process.kill()
    first.process.wait()
    second = ServerProcess(str(endless_model), *options, state_dir=tmp_path)
    try:
        client = second.openai()
        response = client.responses.retrieve(created.id)
        assert response.status == "failed" and response.error is not None
        assert response.error.code == "server_error"
        assert client.responses.create(**ASK, previous_response_id=done.id).status in ("completed", "incomplete")
    finally:
        assert second.stop() == 0


def test_responses_run_in_batches_too(client: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": ASK}
    file = client.files.create(file=json.dumps(line).encode(), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    wait_for(lambda: client.batches.retrieve(batch.id).output_file_id)
    ended = client.batches.retrieve(batch.id)
    answer = json.loads(client.files.content(ended.output_file_id or "").text)
    assert answer["response"]["body"]["object"] == "response"
    assert ended.usage is not None and ended.usage.output_tokens > 0


# --- answers of a given form ------------------------------------------------------------------------------------------


class Verdict(pydantic.BaseModel):
    guilty: bool
    years: Literal[1, 5, 10]


def test_an_answer_is_parsed_into_the_clients_own_type(client: openai.OpenAI) -> None:
    for seed in range(5):
        response = client.responses.parse(
            model=MODEL, input="Judge!", text_format=Verdict, max_output_tokens=200, extra_body={"seed": seed}
        )
        assert isinstance(response.output_parsed, Verdict)


def test_a_call_that_must_be_made_is_made_rightly(client: openai.OpenAI) -> None:
    judge: Any = {
        "type": "function",
        "name": "judge",
        "parameters": Verdict.model_json_schema(),
        "strict": True,
    }
    for choice in ("required", {"type": "function", "name": "judge"}):
        response = client.responses.create(
            model=MODEL,
            input="Judge!",
            tools=[judge],
            tool_choice=choice,
            parallel_tool_calls=False,
            max_output_tokens=300,
            extra_body={"seed": 1},
        )  # type: ignore[call-overload]
        call = response.output[-1]
        assert call.type == "function_call"
        Verdict.model_validate_json(call.arguments)


def test_a_form_that_cannot_be_is_refused_by_name(server: ServerProcess) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "("}}}
    assert refusal(server, text=form)["param"].startswith("text.format")
