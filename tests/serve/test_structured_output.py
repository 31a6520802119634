"""Answers of a given form over real HTTP: by every field that clients ask for one with, whole and streamed."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field
from server_process import ServerProcess, children_of, standing_still, wait_for
from tiny_model import MODEL
from wire import connection, request_bytes

ASK = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 1.0, "seed": 3, "max_tokens": 400}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "amount": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "amount"],
}


def chat(server: ServerProcess, **fields: Any) -> str:
    answer = server.post("/v1/chat/completions", {**ASK, **fields})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


def refusal(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/chat/completions", {**ASK, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def check_colour(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"colour", "amount"}
    assert value["colour"] in ("red", "green") and 1 <= value["amount"] <= 9


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR, "strict": True}}},
        {"response_format": {"type": "json_object", "schema": COLOUR}},
        {"structured_outputs": {"json": COLOUR}},
        {"structured_outputs": {"json": json.dumps(COLOUR)}},
        {"guided_json": COLOUR},
        {"guided_json": json.dumps(COLOUR)},
        {"json_schema": COLOUR},
        {"json_schema": json.dumps(COLOUR)},
        {"grammar": {"type": "json", "value": COLOUR}},
    ],
)
def test_c19_a_schema_is_obeyed_however_it_is_asked_for(server: ServerProcess, fields: dict[str, Any]) -> None:
    check_colour(chat(server, **fields))


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": r"\d{3}-\w"}}, r"\d{3}-\w"),
        ({"guided_regex": "[ab]{4}"}, "[ab]{4}"),
        ({"regex": "x+y"}, "x+y"),
        ({"response_format": {"type": "regex", "regex": "q{2}"}}, "q{2}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_choice": ["up", "down"]}, "up|down"),
        ({"guided_grammar": 'root ::= "a" | "b"'}, "a|b"),
        ({"grammar": 'root ::= "(" [0-9]{2} ")"'}, r"\(\d\d\)"),
        ({"ebnf": 'root ::= "one"'}, "one"),
        ({"structured_outputs": {"grammar": "start: /[xyz]{3}/"}}, "[xyz]{3}"),
        ({"structural_tag": json.dumps({"format": {"type": "const_string", "value": "tag"}})}, "tag"),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<n>",
                        "content": {"type": "regex", "pattern": "5"},
                        "end": "</n>",
                    },
                }
            },
            "<n>5</n>",
        ),
    ],
)
def test_other_forms_are_obeyed(server: ServerProcess, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, chat(server, **fields))


def test_c19_any_json_object(server: ServerProcess) -> None:
    answer = server.post("/v1/chat/completions", {**ASK, "response_format": {"type": "json_object"}, "max_tokens": 60})
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] in ("stop", "length")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_text_is_any_text_and_no_form_is_asked_for_by_null(server: ServerProcess) -> None:
    plain = server.post("/v1/chat/completions", {**ASK, "max_tokens": 8}).json()["choices"]
    fields = {"response_format": {"type": "text"}, "guided_json": None, "grammar": "", "structured_outputs": None}
    assert server.post("/v1/chat/completions", {**ASK, "max_tokens": 8, **fields}).json()["choices"] == plain


def test_completions_have_forms_too(server: ServerProcess) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 20, "guided_choice": ["left", "right"]}
    choices = server.post("/v1/completions", body).json()["choices"]
    assert [choice["text"] in ("left", "right") for choice in choices] == [True] * 4


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    names: list[Literal["Tom", "Rex"]] = Field(max_length=2)


def test_the_openai_client_parses_into_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "A pet?"}],
        response_format=Pet,
        temperature=1,
        max_tokens=400,
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Pet) and parsed.kind in ("cat", "dog")


def test_a_form_is_obeyed_in_a_stream_and_by_each_of_n(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Go"}],
        extra_body={"guided_json": COLOUR},
        stream=True,
        n=3,
        temperature=1,
        max_tokens=400,
    )
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for text in texts:
        check_colour(text)


def test_the_same_answer_whole_and_streamed(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": MODEL, "messages": [{"role": "user", "content": "Go"}], "seed": 5, "temperature": 1, "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}},
    }  # fmt: skip
    whole = client.chat.completions.create(**ask).choices[0].message.content
    with client.chat.completions.stream(**ask) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == whole


def test_an_answer_cut_short_says_so(server: ServerProcess) -> None:
    body = {**ASK, "max_tokens": 3, "guided_regex": "[a-c]{200}"}
    (choice,) = server.post("/v1/chat/completions", body).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert re.fullmatch("[a-c]+", choice["message"]["content"])


@pytest.mark.parametrize(
    ("format", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": []}}, "response_format.json_schema.schema"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "structural_tag"}, "response_format"),
    ],
)
def test_c19_a_response_format_that_lacks_something_is_refused(
    server: ServerProcess, format: dict[str, Any], param: str
) -> None:
    assert refusal(server, response_format=format)["param"] == param


def test_c19_an_unsupported_keyword_is_named(server: ServerProcess) -> None:
    for stream in (False, True):
        schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
        format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        error = refusal(server, response_format=format, stream=stream)
        assert '"not"' in error["message"] and error["param"] == "response_format"


def test_two_forms_at_once_are_refused(server: ServerProcess) -> None:
    error = refusal(server, guided_regex="a", guided_choice=["a"])
    assert "guided_regex" in error["message"] and "guided_choice" in error["message"]
    assert refusal(server, structured_outputs={"regex": "a", "choice": ["a"]})["param"] == "structured_outputs"
    assert refusal(server, guided_regex="a", ignore_eos=True)["param"] == "ignore_eos"


def test_a_schema_beyond_the_limit_is_refused_with_the_numbers(server: ServerProcess) -> None:
    error = refusal(server, guided_json={"enum": ["x" * 10_000_000]})
    assert "1048576 bytes at most" in error["message"]


def trials_of(server: ServerProcess) -> int:
    """The process that compiles grammars on trial: a child of the one that matches, which is the engine's. Both are there once
    there was a grammar."""
    (matching,) = children_of(server.engine_pid)
    (trials,) = children_of(matching)
    return trials


def test_others_are_served_while_a_grammar_is_tried(server: ServerProcess) -> None:
    check_colour(chat(server, guided_json=COLOUR))  # from now on compiled
    with ThreadPoolExecutor() as pool:
        with standing_still(trials_of(server)):
            tried = pool.submit(chat, server, guided_choice=["tried for long"])
            wait_for(lambda: server.metrics()["trivium_grammar_preparing_requests"] or None)
            assert server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2}).status_code == 200
            check_colour(chat(server, guided_json=COLOUR))
            assert not tried.done()
        assert tried.result() == "tried for long"


def test_a_hostile_grammar_is_refused(server: ServerProcess) -> None:
    hostile = {"enum": [f"{number:x}" for number in range(90_000)]}
    assert refusal(server, guided_json=hostile)["param"] == "guided_json"


def test_a_client_that_goes_while_its_grammar_is_tried_leaves_nothing(own_server: ServerProcess) -> None:
    check_colour(chat(own_server, guided_json=COLOUR))
    with standing_still(trials_of(own_server)):
        with connection(own_server) as sock:
            sock.sendall(request_bytes("/v1/chat/completions", {**ASK, "guided_choice": ["nobody waits for it"]}))
            wait_for(lambda: own_server.metrics()["trivium_grammar_preparing_requests"] or None)
        own_server.wait_until_idle()
    assert own_server.metrics()["trivium_grammar_preparing_requests"] == 0
    check_colour(chat(own_server, guided_json=COLOUR))


def test_logprobs_are_the_models_own(server: ServerProcess) -> None:
    """A form changes what is drawn, not what the model thought of it."""
    body = {"prompt": "Hello", "max_tokens": 1, "logprobs": 3, "temperature": 0}
    free = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]["top_logprobs"][0]
    bound = server.post("/v1/completions", {**body, "guided_regex": "[0-9]+"}).json()["choices"][0]["logprobs"]
    assert bound["top_logprobs"][0].items() >= free.items()


def test_the_grammar_process_ends_with_the_server(own_server: ServerProcess) -> None:
    chat(own_server, guided_choice=["a"])
    engine = own_server.engine_pid
    children = children_of(engine)
    assert children
    own_server.stop()
    wait_for(lambda: True if not any(alive(pid) for pid in children) else None)


def test_grammars_are_counted(server: ServerProcess) -> None:
    before = server.metrics()
    chat(server, guided_choice=["counted"])
    chat(server, guided_choice=["counted"])
    refusal(server, guided_regex="(counted")
    after = server.metrics()
    grown = {
        name: after[f"trivium_grammar_{name}_total"] - before[f"trivium_grammar_{name}_total"]
        for name in ("compiled", "refused", "reused")
    }
    assert grown == {"compiled": 1, "refused": 1, "reused": 1}
    assert after["trivium_grammar_preparing_requests"] == 0
    assert after["trivium_grammar_compile_seconds_total"] > before["trivium_grammar_compile_seconds_total"]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
