"""Tools and reasoning in Responses, with a model that says what the test tells it to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openapi_schemas import assert_conforms, assert_event_conforms
from parrot_server import says
from server_process import ServerProcess
from test_responses import read_events

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": None,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>'
THINKING = "<think>\nWhere is it?\n</think>\n\n"


@pytest.fixture(scope="module")
def bird(parrot: ServerProcess) -> Iterator[openai.OpenAI]:
    with parrot.openai() as client:
        yield client


def said(answer: str) -> Any:
    return says(answer)


def test_r2_thought_speech_and_calls_are_items_in_their_order(bird: openai.OpenAI) -> None:
    answer = f"{THINKING}I look it up.\n{CALL}\n{CALL}"
    response = bird.responses.create(model="parrot", input=said(answer), tools=[WEATHER])  # type: ignore[list-item]
    assert_conforms(response.to_dict(), "Response")
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, _, first, second = response.output
    assert reasoning.type == "reasoning" and reasoning.content is not None
    assert reasoning.content[0].text.strip() == "Where is it?"
    assert response.output_text.strip() == "I look it up."
    assert first.type == "function_call" and second.type == "function_call"
    assert (first.name, first.arguments) == ("get_weather", '{"city": "Zürich 🙂"}')
    assert first.call_id != second.call_id
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens > 0


def test_r4_a_stream_of_calls_is_read_by_the_official_client(bird: openai.OpenAI) -> None:
    answer = f"{THINKING}I look it up.\n{CALL}"
    with bird.responses.stream(model="parrot", input=said(answer), tools=[WEATHER]) as events:  # type: ignore[list-item]
        seen = list(events)
        final = events.get_final_response()
    arguments = [event.delta for event in seen if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == '{"city": "Zürich 🙂"}'
    whole = bird.responses.create(model="parrot", input=said(answer), tools=[WEATHER])  # type: ignore[list-item]
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage


def test_every_event_of_a_stream_of_calls_conforms(parrot: ServerProcess) -> None:
    body = {"input": said(f"{THINKING}{CALL}"), "tools": [WEATHER], "stream": True, "top_logprobs": 1}
    events = read_events(parrot.post("/v1/responses", body).text)
    for event in events:
        if "response" in event and event["response"]["usage"] is None:
            del event["response"]["usage"]
        assert_event_conforms(event)
    assert events[-1]["type"] == "response.completed"


def test_r8_a_calls_result_is_sent_back_after_it(parrot: ServerProcess, bird: openai.OpenAI) -> None:
    asked = said(f"{THINKING}{CALL}")
    first = bird.responses.create(model="parrot", input=asked, tools=[WEATHER])  # type: ignore[list-item]
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = said("It is sunny.")
    second = bird.responses.create(
        model="parrot",
        input=[result, *again],
        previous_response_id=first.id,
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert second.output_text == "It is sunny."
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    chat = parrot.post(
        "/v1/chat/completions/render",
        {
            "messages": [
                *asked,
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": first.output[0].content[0].text,  # type: ignore[union-attr,index]
                    "tool_calls": [{"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}}],
                },
                {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"},
                *again,
            ],
            "tools": [{"type": "function", "function": function}],
        },
    ).json()
    assert second.usage is not None and second.usage.input_tokens == chat["count"]


def test_a_client_that_keeps_its_history_gets_its_reasoning_back(bird: openai.OpenAI) -> None:
    """As Codex does it: nothing stored, reasoning returned as opaque content."""
    asked = said(f"{THINKING}Here.")
    options: dict[str, Any] = {"model": "parrot", "store": False, "include": ["reasoning.encrypted_content"]}
    first = bird.responses.create(input=asked, **options)
    kept = [item.to_dict() for item in first.output]
    assert kept[0]["encrypted_content"]
    opaque = [{**kept[0], "content": None}, *kept[1:]]
    last = said("Good.")
    plain = bird.responses.create(input=[*asked, *kept, *last], **options)
    from_opaque = bird.responses.create(input=[*asked, *opaque, *last], **options)
    assert plain.usage is not None and from_opaque.usage is not None
    assert plain.usage.input_tokens == from_opaque.usage.input_tokens
    without = bird.responses.create(input=[*asked, *kept[1:], *last], **options)
    assert without.usage is not None and without.usage.input_tokens < plain.usage.input_tokens


def test_no_tools_means_no_calls(bird: openai.OpenAI) -> None:
    response = bird.responses.create(
        model="parrot",
        input=said("plain"),
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice="none",
    )
    assert [item.type for item in response.output] == ["message"]
    assert response.tool_choice == "none"
