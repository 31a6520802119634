"""Items of Responses as messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.serve.errors import ApiError
from trivium.serve.openai.protocol import ChatRequest
from trivium.serve.responses.chat_request import chat_request, write_reasoning
from trivium.serve.responses.items import Item, ItemReference, read_input
from trivium.serve.responses.protocol import CreateResponse, ReasoningSettings, TextFormat, TextSettings


def items(given: Any) -> list[Item]:
    return [item for item in read_input(given, "input") if not isinstance(item, ItemReference)]


def chat(given: Any, **fields: Any) -> ChatRequest:
    return chat_request(CreateResponse(**fields), items(given))


def messages(given: Any, **fields: Any) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in chat(given, **fields).messages]


def test_r8_a_string_is_a_user_message() -> None:
    assert messages("Hi", instructions="Be kind") == [("system", "Be kind"), ("user", "Hi")]


def test_r8_messages_may_have_strings_or_parts_and_need_no_type() -> None:
    given = [
        {"role": "developer", "content": "rules"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "d"},
    ]  # fmt: skip
    assert messages(given) == [("developer", "rules"), ("user", "ab"), ("assistant", "cno"), ("user", "d")]


def test_r8_what_the_assistant_thought_said_and_called_is_one_message() -> None:
    given = [
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"sky"}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "blue"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "grey"}]},
        {"type": "reasoning", "encrypted_content": write_reasoning("so")},
        {"role": "assistant", "content": "Blue and grey."},
    ]
    user, assistant, first, second, last = chat(given).messages
    assert (user.role, assistant.content, assistant.reasoning_content) == ("user", "I look.", "hm")
    assert [(call.id, call.function.name, call.function.arguments) for call in assistant.tool_calls or ()] == [
        ("c1", "look", '{"at":"sky"}'),
        ("c2", "look", "{}"),
    ]
    assert [(first.role, first.tool_call_id, first.content), (second.tool_call_id, second.content)] == [
        ("tool", "c1", "blue"),
        ("c2", "grey"),
    ]
    assert (last.content, last.reasoning_content) == ("Blue and grey.", "so")


def test_reasoning_that_another_server_wrote_is_left_out() -> None:
    given = [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAAA=="}, {"role": "user", "content": "x"}]
    assert chat(given).messages[0].reasoning_content == ""


def test_r8_items_get_ids_and_keep_those_they_have() -> None:
    first, second = items([{"role": "user", "content": "x"}, {"id": "msg_7", "role": "user", "content": "y"}])
    assert (first.id or "").startswith("msg_") and second.id == "msg_7"


def test_an_id_alone_stands_for_an_item() -> None:
    assert read_input([{"id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}], "input") == [
        ItemReference("msg_1"),
        ItemReference("msg_2"),
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "computer_call", "id": "x"},
        {"type": 7},
        {"role": "king", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
        {"type": "function_call", "name": "x"},
        {},
    ],
)
def test_an_item_that_cannot_be_read_is_named_by_its_place(item: dict) -> None:
    with pytest.raises(ApiError) as caught:
        read_input([{"role": "user", "content": "x"}, item], "input")
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith("input[1]")


def test_r10_functions_are_flat_and_other_tools_do_not_fail_the_request() -> None:
    tools = [
        {"type": "web_search"},
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
        {"type": "namespace", "name": "mcp"},
    ]
    request = chat("x", tools=tools, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]})
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.tool_choice == {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "f"}]}}
    assert chat("x", tools=[{"type": "web_search"}], tool_choice="auto").tools is None


def test_settings_are_the_chats_settings() -> None:
    request = chat(
        "x",
        max_output_tokens=7,
        temperature=0.5,
        reasoning=ReasoningSettings(effort="low"),
        include=["message.output_text.logprobs"],
        seed=3,
        text=TextSettings(format=TextFormat(type="json_object")),
    )
    assert (request.max_completion_tokens, request.temperature, request.reasoning_effort) == (7, 0.5, "low")
    assert (request.logprobs, request.top_logprobs, request.seed) == (True, 0, 3)
    assert request.response_format is not None and request.response_format.type == "json_object"


def test_a_setting_out_of_range_is_named_as_the_client_named_it() -> None:
    with pytest.raises(ApiError) as caught:
        chat("x", min_p=7)
    assert caught.value.param == "min_p"
