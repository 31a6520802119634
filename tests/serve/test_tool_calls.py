"""Tools: what is offered, what comes back, whole and in streams, with a model that says what the test tells it to."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx
import pytest
from parrot_server import says
from server_process import ServerProcess, wait_for
from wire import chunks

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>'
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def ask(server: ServerProcess, answer: str, **fields: object) -> dict[str, Any]:
    body = server.post(PATH, {"messages": says(answer), "tools": TOOLS, **fields})
    assert body.status_code == 200, body.text
    return body.json()


def stream(server: ServerProcess, answer: str, **fields: object) -> list[dict[str, Any]]:
    return chunks(server, PATH, {"messages": says(answer), "tools": TOOLS, **fields})


def deltas(stream: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [c["delta"] for chunk in stream for c in chunk["choices"] if c["index"] == index]


def gathered(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """What the chunks of one choice add up to."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for delta in deltas(stream):
        found["content"] += delta.get("content") or ""
        found["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(found["calls"]):
                found["calls"].append([call["id"], call["function"]["name"], ""])
            found["calls"][call["index"]][2] += call["function"]["arguments"]
    (found["finish"],) = [c["finish_reason"] for chunk in stream for c in chunk["choices"] if c["finish_reason"]]
    return found


def test_c3_c4_s10_a_call_is_a_call_and_nothing_of_it_is_content(parrot: ServerProcess) -> None:
    (choice,) = ask(parrot, CALL)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Zürich 🙂"}'}


def test_text_before_calls_is_content(parrot: ServerProcess) -> None:
    message = ask(parrot, f"Let me see.\n{CALL}\n{CALL_NOW}")["choices"][0]["message"]
    assert message["content"] == "Let me see."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "now"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_an_answer_without_calls_ends_with_stop(parrot: ServerProcess) -> None:
    (choice,) = ask(parrot, "Hello.")["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "Hello.")
    assert "tool_calls" not in choice["message"]


def test_a_malformed_call_comes_back_as_content_and_the_log_says_so(parrot: ServerProcess) -> None:
    wrong = "<tool_call>now, please</tool_call>"
    (choice,) = ask(parrot, wrong)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", wrong)
    assert wait_for(lambda: "1 tool calls could not be read as hermes" in parrot.log or None)


def test_s8_the_first_delta_of_a_call_names_it_and_later_ones_bring_arguments(parrot: ServerProcess) -> None:
    calls = defaultdict(list)
    for delta in deltas(stream(parrot, f"{CALL}\n{CALL_NOW}")):
        for call in delta.get("tool_calls", []):
            calls[call["index"]].append(call)
    assert list(calls) == [0, 1]
    for name, (first, *rest) in zip(("get_weather", "now"), calls.values(), strict=True):
        assert set(first) == {"index", "id", "type", "function"}
        assert first["type"] == "function"
        assert first["function"] == {"name": name, "arguments": ""}
        assert rest and all(set(later) == {"index", "function"} for later in rest)
        assert all(set(later["function"]) == {"arguments"} for later in rest)


def test_s8_arguments_come_while_they_are_made(parrot: ServerProcess) -> None:
    whole = {"city": "Llanfairpwllgwyngyll, " * 80}  # a minute of slow speech
    said = f"<tool_call>{json.dumps({'name': 'get_weather', 'arguments': whole})}</tool_call>"
    body = {"messages": says(said, slowly=True), "tools": TOOLS, "stream": True}
    begun = ""
    with httpx.stream("POST", parrot.url + PATH, json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                begun = "".join(
                    [
                        begun,
                        *(
                            call["function"]["arguments"]
                            for delta in deltas([json.loads(line[6:])])
                            for call in delta.get("tool_calls", [])
                        ),
                    ]
                )
            if begun:
                break
    assert json.dumps(whole).startswith(begun) and begun != json.dumps(whole)
    parrot.wait_until_idle()


@pytest.mark.parametrize(
    "answer",
    [
        CALL,
        f"{CALL}\n{CALL_NOW}",
        f"Hm.\n{CALL}",
        "Plain <b>.",
        f"<think>\nI think.\n</think>\n\nSo.\n{CALL_NOW}",
        "<tool_call>no",
    ],
)
def test_s9_s11_s12_a_stream_adds_up_to_the_answer_without_streaming(parrot: ServerProcess, answer: str) -> None:
    (choice,) = ask(parrot, answer)["choices"]
    message = choice["message"]
    pieces = gathered(stream(parrot, answer))
    assert pieces["content"] == (message["content"] or "")
    assert pieces["reasoning"] == message.get("reasoning", "")
    expected = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert [(name, arguments) for _, name, arguments in pieces["calls"]] == expected
    assert pieces["finish"] == choice["finish_reason"]


def test_s10_an_answer_cut_by_its_length_says_length(parrot: ServerProcess) -> None:
    (choice,) = ask(parrot, CALL, max_tokens=65)["choices"]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Zürich 🙂"}'.startswith(call["function"]["arguments"])
    assert gathered(stream(parrot, CALL, max_tokens=65))["finish"] == "length"


def test_c16_without_tools_or_with_none_calls_are_text_and_tools_are_not_shown(parrot: ServerProcess) -> None:
    for fields in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        answer = ask(parrot, CALL, **fields)
        assert answer["choices"][0]["message"]["content"] == CALL
        assert answer["usage"]["prompt_tokens"] == ask(parrot, CALL, tools=None)["usage"]["prompt_tokens"]


def test_c16_allowed_tools_are_those_that_the_model_is_shown(parrot: ServerProcess) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}
    some, only = (ask(parrot, CALL_NOW, **f)["usage"] for f in ({"tool_choice": allowed}, {"tools": [NOW]}))
    assert some["prompt_tokens"] == only["prompt_tokens"] < ask(parrot, CALL_NOW)["usage"]["prompt_tokens"]


def test_c9_what_is_ours_stands_beside_openais_fields(parrot: ServerProcess) -> None:
    (choice,) = ask(parrot, "one two", stop="two")["choices"]
    assert choice["stop_reason"] == "two" and choice["message"]["content"] == "one "


def test_c18_without_parallel_calls_there_is_one(parrot: ServerProcess) -> None:
    message = ask(parrot, f"{CALL}\n{CALL_NOW}", parallel_tool_calls=False)["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1
    assert len(gathered(stream(parrot, f"{CALL}\n{CALL_NOW}", parallel_tool_calls=False))["calls"]) == 1


def test_functions_are_the_older_word_for_tools(parrot: ServerProcess) -> None:
    fields = {"tools": None, "functions": [tool["function"] for tool in TOOLS]}
    (choice,) = ask(parrot, CALL, **fields)["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Zürich 🙂"}'}
    assert "tool_calls" not in choice["message"]
    pieces = [d["function_call"] for d in deltas(stream(parrot, CALL, **fields)) if "function_call" in d]
    assert pieces[0] == {"name": "get_weather", "arguments": ""}
    assert "".join(piece["arguments"] for piece in pieces) == '{"city": "Zürich 🙂"}'
    assert ask(parrot, CALL, **fields, function_call="none")["choices"][0]["message"]["content"] == CALL


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0]"),
        ([{"type": "function", "function": {}}], "tools[0]"),
        ([WEATHER, {"type": "custom", "custom": {"name": "x"}}], "tools[1].type"),
        ([{"type": "function", "function": {"name": "two words"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools[0]"),
        ([NOW] * 2000, "tools"),
        ("now", "tools"),
        ([3], "tools[0]"),
    ],
)
def test_tools_that_are_none_are_refused_by_their_place(parrot: ServerProcess, tools: object, param: str) -> None:
    answer = parrot.post(PATH, {"messages": says("x"), "tools": tools})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_past_calls_and_results_are_shown_by_the_template(parrot: ServerProcess) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    history = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "I look."},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        *says("It is noon."),
    ]
    answer = ask(parrot, "", messages=history)
    assert answer["choices"][0]["message"]["content"] == "It is noon."
    rendered = parrot.post("/v1/chat/completions/render", {"messages": history, "tools": TOOLS}).json()["prompt"]
    assert '<think>I look.</think><tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>' in rendered
    assert '"get_weather"' in rendered


def test_the_openai_client_makes_a_round_with_a_tool(parrot: ServerProcess) -> None:
    with parrot.openai() as client:
        messages: list[Any] = says(f"Let me see.\n{CALL}")
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)  # type: ignore[arg-type]
        message = answer.choices[0].message
        assert message.tool_calls is not None and message.tool_calls[0].type == "function"
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Zürich 🙂"}
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"},
            *says("It is sunny."),
        ]
        again = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)  # type: ignore[arg-type]
        assert again.choices[0].message.content == "It is sunny."


def test_the_openai_clients_stream_helper_gathers_calls_of_several_choices(parrot: ServerProcess) -> None:
    said = f"<think>\nWell.\n</think>\n\nLet me see.\n{CALL}\n{CALL_NOW}"
    with parrot.openai() as client:
        model = client.models.list().data[0].id
        with client.chat.completions.stream(
            model=model,
            messages=says(said),
            tools=TOOLS,
            n=3,
            logprobs=True,
            stream_options={"include_usage": True},  # type: ignore[arg-type]
        ) as helper:
            kinds = {event.type for event in helper}
            final = helper.get_final_completion()
    assert {"content.done", "tool_calls.function.arguments.done", "logprobs.content.delta"} <= kinds
    assert [choice.index for choice in final.choices] == [0, 1, 2]
    whole = ask(parrot, said, n=3, logprobs=True)
    for choice, expected in zip(final.choices, whole["choices"], strict=True):
        message = choice.message
        assert message.content == "Let me see."
        assert message.role == "assistant"
        assert [call.function.name for call in message.tool_calls or []] == ["get_weather", "now"]
        assert message.tool_calls and json.loads(message.tool_calls[0].function.arguments) == {"city": "Zürich 🙂"}
        assert choice.finish_reason == "tool_calls"
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [entry.token for entry in choice.logprobs.content] == [
            entry["token"] for entry in expected["logprobs"]["content"]
        ]
    assert final.usage is not None and final.usage.completion_tokens == whole["usage"]["completion_tokens"]


def test_s13_no_token_vanishes_from_the_logprobs_of_a_stream(parrot: ServerProcess) -> None:
    said = f"<think>\nWell.\n</think>\n\nSee.\n{CALL}"
    whole = ask(parrot, said, logprobs=True)
    entries = [
        entry
        for chunk in stream(parrot, said, logprobs=True)
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"]
