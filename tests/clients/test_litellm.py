"""litellm, as its users call it: `openai/<model>` with an api_base."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import litellm
import pytest
from pydantic import BaseModel
from server_process import ServerProcess, wait_for
from told import CALL, WEATHER, say, user


class Person(BaseModel):
    name: str
    age: int


def settings(server: ServerProcess, model: str) -> dict[str, Any]:
    return {"model": f"openai/{model}", **place(server)}


def place(server: ServerProcess) -> dict[str, Any]:
    return {"api_base": f"{server.url}/v1", "api_key": "none", "timeout": 60, "max_retries": 0}


def test_a_chat_is_answered(parrot: ServerProcess) -> None:
    answer = litellm.completion(**settings(parrot, "parrot"), messages=user(say("Hello there.")))
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_of_three_choices_adds_up(parrot: ServerProcess) -> None:
    chunks = litellm.completion(
        **settings(parrot, "parrot"),
        messages=user(say("one two")),
        stream=True,
        n=3,
        stream_options={"include_usage": True},
    )
    said: dict[int, str] = {}
    usage = None
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
        usage = getattr(chunk, "usage", None) or usage
    assert said == {0: "one two", 1: "one two", 2: "one two"}
    assert usage is not None and usage.completion_tokens > 0


def test_an_async_stream_is_read_to_its_end(parrot: ServerProcess) -> None:
    async def read() -> str:
        stream = await litellm.acompletion(**settings(parrot, "parrot"), messages=user(say("äöü 🙂")), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(read()) == "äöü 🙂"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called(parrot: ServerProcess, stream: bool) -> None:
    answer = litellm.completion(**settings(parrot, "parrot"), messages=user(say(CALL)), tools=[WEATHER], stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Rome"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_reasoning_is_told_apart(parrot: ServerProcess) -> None:
    said = say("<think>\nHm.\n</think>\n\nYes.")
    message = litellm.completion(**settings(parrot, "parrot"), messages=user(said)).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.", "Yes.")


def test_logprobs_come_with_the_tokens(server: ServerProcess) -> None:
    answer = litellm.completion(
        **settings(server, "tiny"), messages=user("Hello"), max_tokens=4, logprobs=True, top_logprobs=2, seed=1
    )
    entries = answer.choices[0].logprobs.content
    assert 1 <= len(entries) <= 4 and all(len(entry.top_logprobs) == 2 for entry in entries)


def test_an_answer_of_a_form_is_parsed(server: ServerProcess) -> None:
    answer = litellm.completion(
        **settings(server, "tiny"),
        messages=user("Hello"),
        response_format=Person,
        max_tokens=800,
        seed=1,
        temperature=0,
    )
    if answer.choices[0].finish_reason == "stop":
        Person.model_validate_json(answer.choices[0].message.content)


def test_texts_become_vectors(server: ServerProcess) -> None:
    vectors = litellm.embedding(**settings(server, "tiny"), input=["a", "b"], encoding_format="float").data
    assert len(vectors) == 2 and len(vectors[0]["embedding"]) == 64


def test_a_completion_goes_on_with_a_prompt(server: ServerProcess) -> None:
    answer = litellm.text_completion(**settings(server, "tiny"), prompt="Hello", max_tokens=3)
    assert answer.usage.completion_tokens <= 3 and answer.choices[0].finish_reason in ("stop", "length")


def test_a_response_is_made(parrot: ServerProcess) -> None:
    answer = litellm.responses(**settings(parrot, "parrot"), input=say("Hello."))
    assert answer.output[0].content[0].text == "Hello."


def test_a_batch_runs(parrot: ServerProcess) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
    line["body"] = {"model": "parrot", "messages": user(say("done"))}  # type: ignore[assignment]
    provider = {"custom_llm_provider": "openai", **place(parrot)}
    upload = io.BytesIO(json.dumps(line).encode())
    upload.name = "lines.jsonl"
    file = litellm.create_file(file=upload, purpose="batch", **provider)
    batch = litellm.create_batch(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **provider
    )

    def ended() -> Any:
        now = litellm.retrieve_batch(batch_id=batch.id, **provider)
        return now if now.status == "completed" else None

    output = litellm.file_content(file_id=wait_for(ended).output_file_id, **provider)
    assert json.loads(output.content)["response"]["body"]["choices"][0]["message"]["content"] == "done"


def test_errors_have_their_classes(server: ServerProcess) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**settings(server, "no-such-model"), messages=user("Hello"))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**settings(server, "tiny"), messages=user("a b " * 9000))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**settings(server, "tiny"), messages=user("Hello"), temperature=9)
