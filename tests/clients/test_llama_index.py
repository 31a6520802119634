"""LlamaIndex: OpenAILike and OpenAILikeEmbedding with an api_base."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from server_process import ServerProcess
from told import CALL, say


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def llm(server: ServerProcess, model: str, **options: Any) -> OpenAILike:
    options = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 4096, **options}
    return OpenAILike(model=model, api_base=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60, **options)


def asked(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


def test_a_chat_is_answered(parrot: ServerProcess) -> None:
    assert llm(parrot, "parrot").chat(asked(say("Hello there."))).message.content == "Hello there."


def test_a_stream_adds_up(parrot: ServerProcess) -> None:
    pieces = list(llm(parrot, "parrot").stream_chat(asked(say("one two äöü"))))
    assert "".join(piece.delta or "" for piece in pieces) == pieces[-1].message.content == "one two äöü"


def test_an_async_stream_adds_up(parrot: ServerProcess) -> None:
    async def read() -> str:
        stream = await llm(parrot, "parrot").astream_chat(asked(say("one two")))
        return "".join([piece.delta or "" async for piece in stream])

    assert asyncio.run(read()) == "one two"


def test_several_choices_are_in_the_raw_answer(parrot: ServerProcess) -> None:
    answer = llm(parrot, "parrot", additional_kwargs={"n": 3}).chat(asked(say("yes")))
    assert [choice.message.content for choice in answer.raw.choices] == ["yes"] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called(parrot: ServerProcess, stream: bool) -> None:
    model = llm(parrot, "parrot")
    tools = [FunctionTool.from_defaults(weather)]
    if stream:
        *_, answer = model.stream_chat_with_tools(tools, user_msg=say(CALL))
    else:
        answer = model.chat_with_tools(tools, user_msg=say(CALL))
    (call,) = model.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Rome"})


def test_a_required_call_is_made_by_any_model(server: ServerProcess) -> None:
    model = llm(server, "tiny", max_tokens=400, additional_kwargs={"seed": 1})
    tools = [FunctionTool.from_defaults(weather)]
    answer = model.chat_with_tools(tools, user_msg="Hello", tool_required=True, allow_parallel_tool_calls=False)
    assert model.get_tool_calls_from_response(answer)[0].tool_name == "weather"


def test_logprobs_come_with_the_tokens(server: ServerProcess) -> None:
    model = llm(server, "tiny", max_tokens=4, logprobs=True, top_logprobs=2, additional_kwargs={"seed": 1})
    answer = model.chat(asked("Hello"))
    assert answer.logprobs and all(len(entries) == 2 for entries in answer.logprobs)


def test_structured_output_is_parsed(server: ServerProcess) -> None:
    model = llm(server, "tiny", max_tokens=400, additional_kwargs={"seed": 1}).as_structured_llm(Person)
    assert isinstance(model.chat(asked("Hello")).raw, Person)


def test_a_completion_goes_on_with_a_prompt(server: ServerProcess) -> None:
    model = llm(server, "tiny", is_chat_model=False, is_function_calling_model=False, max_tokens=3)
    assert isinstance(model.complete("Hello").text, str)
    assert "".join(piece.delta or "" for piece in model.stream_complete("Hello")) is not None


def test_texts_become_vectors(server: ServerProcess) -> None:
    model = OpenAILikeEmbedding(model_name="tiny", api_base=f"{server.url}/v1", api_key="none")
    assert [len(vector) for vector in model.get_text_embedding_batch(["a", "b"])] == [64, 64]
