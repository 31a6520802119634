"""langchain-openai: ChatOpenAI and OpenAIEmbeddings with a base_url."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from server_process import ServerProcess
from told import ADA, CALL, say


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def chat(server: ServerProcess, model: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60, **options)  # type: ignore[arg-type]


def test_a_chat_is_answered_and_counted(parrot: ServerProcess) -> None:
    answer = chat(parrot, "parrot").invoke(say("Hello there."))
    assert answer.content == "Hello there."
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0


def test_a_stream_adds_up(parrot: ServerProcess) -> None:
    model = chat(parrot, "parrot", stream_usage=True)
    whole = None
    for chunk in model.stream(say("one two äöü")):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and whole.content == "one two äöü"
    assert whole.usage_metadata is not None  # type: ignore[attr-defined]


def test_three_choices_come_from_one_request(parrot: ServerProcess) -> None:
    result = chat(parrot, "parrot", n=3).generate([[HumanMessage(say("yes"))]])
    assert [generation.text for generation in result.generations[0]] == ["yes"] * 3


def test_many_chats_run_at_once(parrot: ServerProcess) -> None:
    asked = [say(f"answer {number}") for number in range(8)]
    answers = asyncio.run(chat(parrot, "parrot").abatch(asked))
    assert [answer.content for answer in answers] == [f"answer {number}" for number in range(8)]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_bound_called_and_answered(parrot: ServerProcess, stream: bool) -> None:
    model = chat(parrot, "parrot", streaming=stream).bind_tools([weather])
    asked = HumanMessage(say(CALL))
    answer = model.invoke([asked])
    assert isinstance(answer, AIMessage)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([asked, answer, result, HumanMessage(say("It is sunny."))]).content == "It is sunny."


def test_logprobs_come_with_the_tokens(server: ServerProcess) -> None:
    answer = chat(server, "tiny", max_tokens=4, logprobs=True, top_logprobs=2, seed=1).invoke("Hello")
    entries = answer.response_metadata["logprobs"]["content"]
    assert 1 <= len(entries) <= 4 and all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output_is_parsed(parrot: ServerProcess, server: ServerProcess, method: str) -> None:
    if method == "json_mode":
        assert chat(parrot, "parrot").with_structured_output(Person, method=method).invoke(say(ADA)) == Person(
            name="Ada", age=36
        )
    else:  # the tiny model says anything: that it fits is the grammar's doing
        model = chat(server, "tiny", max_tokens=400, seed=1).with_structured_output(Person, method=method)
        assert isinstance(model.invoke("Hello"), Person)


def test_responses_are_another_way_to_chat(parrot: ServerProcess) -> None:
    model = chat(parrot, "parrot", use_responses_api=True)
    assert model.invoke(say("Hello.")).text == "Hello."
    assert "".join(chunk.text for chunk in model.stream(say("one two"))) == "one two"
    (call,) = model.bind_tools([weather]).invoke(say(CALL)).tool_calls
    assert call["args"] == {"city": "Rome"}


def test_a_completion_goes_on_with_a_prompt(server: ServerProcess) -> None:
    model = OpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="none", max_tokens=3, max_retries=0)  # type: ignore[arg-type]
    assert isinstance(model.invoke("Hello"), str)


def test_texts_become_vectors(server: ServerProcess) -> None:
    options: dict[str, Any] = {"check_embedding_ctx_length": False}  # or it cuts texts with OpenAI's own tokenizer
    model = OpenAIEmbeddings(model="tiny", base_url=f"{server.url}/v1", api_key="none", **options)  # type: ignore[arg-type]
    assert [len(vector) for vector in model.embed_documents(["a", "b"])] == [64, 64]
    assert model.embed_query("a") == pytest.approx(model.embed_documents(["a"])[0], abs=1e-6)
