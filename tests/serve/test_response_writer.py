"""The events of a response, from what a dialect found in the model's text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from openapi_schemas import assert_conforms, assert_event_conforms

from trivium.dialects.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from trivium.serve.chat.news import ChatUsage, ChoiceNews, Finish
from trivium.serve.errors import ApiError
from trivium.serve.openai.protocol import TokenLogprob
from trivium.serve.responses.chat_request import read_reasoning
from trivium.serve.responses.protocol import ResponseObject, ShownReasoning, ShownText, TextFormat
from trivium.serve.responses.writer import ResponseWriter

NEW = ResponseObject(
    id="resp_1", created_at=1, status="in_progress", background=False, instructions=None, max_output_tokens=None,
    max_tool_calls=None, model="m", parallel_tool_calls=True, previous_response_id=None, conversation=None,
    prompt_cache_key=None, reasoning=ShownReasoning(), safety_identifier=None, store=True, temperature=1.0,
    presence_penalty=0.0, frequency_penalty=0.0, text=ShownText(TextFormat()), tool_choice="auto", tools=[],
    top_logprobs=0, top_p=1.0, truncation="disabled", metadata={},
)  # fmt: skip
USAGE = ChatUsage(prompt_tokens=10, cached_tokens=4, completion_tokens=6, reasoning_tokens=2)
SAID: list[Part] = [
    Reasoning("let me "),
    Reasoning("see"),
    Content("\n\n"),
    Content("I look"),
    Content(" it up."),
    Content("\n"),
    CallStart(0, "look", "call_0"),
    CallArguments(0, '{"at":'),
    CallArguments(0, ' "sky"}'),
    CallEnd(0),
    Content("\n"),
    CallStart(1, "look", "call_1"),
    CallArguments(1, "{}"),
    CallEnd(1),
]


def events_of(
    parts: list[Part], reason: Any = "stop", *, keeps_reasoning: bool = False
) -> tuple[list[dict[str, Any]], ResponseObject]:
    writer = ResponseWriter(NEW, keeps_reasoning=keeps_reasoning)
    events = [*writer.created(), *writer.in_progress()]
    for part in parts:
        events += writer.news(ChoiceNews(0, (part,)), ())
    events += writer.finished(Finish(reason), USAGE)
    return [json.loads(msgspec.json.encode(event)) for event in events], writer.response


def assert_all_conform(events: list[dict[str, Any]]) -> None:
    for event in events:
        if "response" in event and event["response"]["usage"] is None:
            del event["response"]["usage"]  # OpenAI's own answers have the null, its schema does not
        assert_event_conforms(event)


def test_r4_r5_r6_events_come_in_order_and_conform() -> None:
    events, _ = events_of(SAID)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == [0, 1, 2, 3]
    assert {event["content_index"] for event in events if "content_index" in event} == {0}
    assert_all_conform(events)


def test_r2_r3_r6_the_last_event_has_the_whole_response() -> None:
    events, response = events_of(SAID)
    shown = events[-1]["response"]
    assert_conforms(shown, "Response")
    assert shown == json.loads(msgspec.json.encode(response))
    reasoning, message, first, second = shown["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert message["content"] == [
        {"type": "output_text", "text": "\n\nI look it up.\n", "annotations": [], "logprobs": []}
    ]
    assert [(call["call_id"], call["name"], call["arguments"]) for call in (first, second)] == [
        ("call_0", "look", '{"at": "sky"}'),
        ("call_1", "look", "{}"),
    ]
    assert {item["status"] for item in shown["output"]} == {"completed"}
    assert len({item["id"] for item in shown["output"]}) == 4
    assert shown["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }


def test_r4_deltas_join_to_what_done_says_and_to_the_item() -> None:
    events, _ = events_of(SAID)
    for number in range(4):
        of_item = [event for event in events if event.get("output_index") == number]
        deltas = "".join(event["delta"] for event in of_item if event["type"].endswith(".delta"))
        (done,) = [event for event in of_item if event["type"].endswith(("text.done", "arguments.done"))]
        assert deltas == done.get("text", done.get("arguments"))
        assert len({event["item_id"] for event in of_item if "item_id" in event}) == 1


def test_white_space_before_a_call_is_no_message() -> None:
    _, response = events_of([Content("\n"), Content(" "), CallStart(0, "f", "c"), CallArguments(0, "{}"), CallEnd(0)])
    assert [type(item).__name__ for item in response.output] == ["FunctionCall"]


@pytest.mark.parametrize(("parts", "text"), [([], ""), ([Content(" \n")], " \n")])
def test_an_answer_of_nothing_is_a_message_of_that(parts: list[Part], text: str) -> None:
    events, _ = events_of(parts)
    (message,) = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == text
    assert_all_conform(events)


def test_r7_a_cut_answer_is_incomplete_and_so_is_its_last_item() -> None:
    events, response = events_of([Reasoning("hm"), Content("I lo")], "length")
    assert events[-1]["type"] == "response.incomplete"
    shown = events[-1]["response"]
    assert (shown["status"], shown["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item.status for item in response.output] == ["completed", "incomplete"]
    assert_all_conform(events)


def test_r9_a_failure_is_told_flat_and_nested_and_ends_the_response() -> None:
    writer = ResponseWriter(NEW, keeps_reasoning=False)
    events = [*writer.created(), *writer.news(ChoiceNews(0, (Content("so far"),)), ())]
    events += writer.failed(ApiError(503, "the engine died", code="engine_dead"))
    told, failed = (json.loads(msgspec.json.encode(event)) for event in events[-2:])
    assert (told["type"], told["message"], told["code"], told["param"]) == (
        "error",
        "the engine died",
        "engine_dead",
        None,
    )
    assert told["error"] == {"message": "the engine died", "type": "server_error", "param": None, "code": "engine_dead"}
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the engine died"}
    assert_all_conform([told, failed])


def test_log_probabilities_go_with_the_text_and_none_is_lost() -> None:
    def entry(token: str) -> TokenLogprob:
        return TokenLogprob(token, -1.0, [ord(token)], [])

    writer = ResponseWriter(NEW, keeps_reasoning=False)
    events = [
        *writer.news(ChoiceNews(0, (Content("a"),)), [entry("a")]),
        *writer.news(ChoiceNews(0), [entry("b")]),  # half of a character, or of a stop string
        *writer.news(ChoiceNews(0, (Content("bc"),)), [entry("c")]),
        *writer.news(ChoiceNews(0), [entry("$")]),  # the token that ended it
        *writer.finished(Finish("stop"), USAGE),
    ]
    shown = [json.loads(msgspec.json.encode(event)) for event in events]
    assert_all_conform(shown)
    told = [item["token"] for event in shown if event["type"].endswith(".delta") for item in event["logprobs"]]
    assert told == ["a", "b", "c", "$"]
    content = shown[-1]["response"]["output"][0]["content"][0]
    assert [item["token"] for item in content["logprobs"]] == told


def test_reasoning_can_go_with_the_client_and_come_back() -> None:
    _, response = events_of([Reasoning("dark thoughts ä"), Content("ok")], keeps_reasoning=True)
    kept = json.loads(msgspec.json.encode(response))["output"][0]["encrypted_content"]
    assert read_reasoning(kept) == "dark thoughts ä"
