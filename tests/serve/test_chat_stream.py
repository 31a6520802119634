"""Streamed chat completions: the chunks, and that they add up to the answer without streaming."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import openai
import pytest
from server_process import ServerProcess
from tiny_model import MODEL
from wire import chunks

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
ASK = {"model": MODEL, "messages": USER, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def by_choice(stream: list[dict]) -> dict[int, list[dict]]:
    found = defaultdict(list)
    for chunk in stream:
        for choice in chunk["choices"]:
            found[choice["index"]].append(choice)
    return found


def test_s1_each_choice_begins_with_its_role_and_names_it_once(server: ServerProcess) -> None:
    for choices in by_choice(chunks(server, PATH, {**ASK, "n": 3})).values():
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])


def test_s2_every_choice_has_its_keys(server: ServerProcess) -> None:
    for chunk in chunks(server, PATH, ASK):
        assert chunk["object"] == "chat.completion.chunk"
        for choice in chunk["choices"]:
            assert {"index", "delta", "finish_reason", "logprobs"} <= set(choice)


def test_s3_indices_appear_in_order_one_to_a_chunk(server: ServerProcess) -> None:
    stream = chunks(server, PATH, {**ASK, "n": 4, "temperature": 1.5})
    assert all(len(chunk["choices"]) == 1 for chunk in stream)
    seen = list(dict.fromkeys(chunk["choices"][0]["index"] for chunk in stream))
    assert seen == [0, 1, 2, 3]


def test_s4_s5_each_choice_ends_once_in_a_chunk_of_its_own(server: ServerProcess) -> None:
    for choices in by_choice(chunks(server, PATH, {**ASK, "n": 3, "ignore_eos": False, "temperature": 2})).values():
        *before, last = choices
        assert last["finish_reason"] in ("stop", "length")
        assert last["delta"] == {}
        assert all(choice["finish_reason"] is None for choice in before)


def test_s6_s7_usage_comes_when_asked_for_and_last(server: ServerProcess) -> None:
    assert all("usage" not in chunk for chunk in chunks(server, PATH, ASK))
    *others, last = chunks(server, PATH, {**ASK, "n": 2, "stream_options": {"include_usage": True}})
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert last["usage"]["total_tokens"] == 24 + last["usage"]["prompt_tokens"]


def test_s6_usage_may_be_told_all_along(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks(server, PATH, {**ASK, "stream_options": options})]
    assert counts == sorted(counts) and counts[-1] == 12


def test_s11_nothing_of_a_stop_string_is_streamed(server: ServerProcess) -> None:
    whole = "".join(
        c["delta"].get("content", "") for c in by_choice(chunks(server, PATH, {**ASK, "max_tokens": 40}))[0]
    )
    stop = whole[12:16]
    body = {**ASK, "max_tokens": 40, "stop": [stop]}
    cut = "".join(choice["delta"].get("content", "") for choice in by_choice(chunks(server, PATH, body))[0])
    assert cut == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    "fields", [{}, {"n": 3, "temperature": 1, "seed": 7}, {"stop": ["e", "t"]}, {"ignore_eos": False}]
)
def test_s12_a_stream_says_what_the_whole_answer_says(server: ServerProcess, fields: dict) -> None:
    body = {**ASK, "max_tokens": 48, **fields}
    whole = server.post(PATH, body).json()
    stream = chunks(server, PATH, {**body, "stream_options": {"include_usage": True}})
    streamed = by_choice(stream)
    for choice in whole["choices"]:
        pieces = streamed[choice["index"]]
        assert "".join(piece["delta"].get("content", "") for piece in pieces) == choice["message"]["content"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        assert pieces[-1]["stop_reason"] == choice["stop_reason"]
    for counted in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert stream[-1]["usage"][counted] == whole["usage"][counted]


@pytest.mark.parametrize("stop", [None, ["e", "n"]])
def test_s13_streamed_logprobs_add_up_to_the_whole_list(server: ServerProcess, stop: list[str] | None) -> None:
    body = {**ASK, "max_tokens": 48, "logprobs": True, "top_logprobs": 2, "stop": stop}
    whole = server.post(PATH, body).json()["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for choice in by_choice(chunks(server, PATH, body))[0]
        if choice["logprobs"] is not None
        for entry in choice["logprobs"]["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
    assert [entry["logprob"] for entry in streamed] == pytest.approx([entry["logprob"] for entry in whole], abs=1e-4)


def test_s1_to_s13_the_clients_own_accumulator_takes_three_choices_with_logprobs(client: openai.OpenAI) -> None:
    # The helper takes an answer that was cut by its length for an error, so these end by themselves.
    asked = {"model": MODEL, "messages": USER, "n": 3, "seed": 3, "logprobs": True, "top_logprobs": 2}
    asked["extra_body"] = {"stop_token_ids": list(range(200, 300)), "min_tokens": 5}
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**asked)
    assert [c.message.content for c in final.choices] == [c.message.content for c in whole.choices]
    assert [c.finish_reason for c in final.choices] == [c.finish_reason for c in whole.choices]
    assert [len(c.logprobs.content) for c in final.choices] == [len(c.logprobs.content) for c in whole.choices]
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_many_streams_at_once_do_not_mix(server: ServerProcess) -> None:
    bodies = [{**ASK, "messages": [{"role": "user", "content": f"number {i}"}], "max_tokens": 24} for i in range(16)]
    alone = [server.post(PATH, body).json()["choices"][0]["message"]["content"] for body in bodies]

    async def read(client: openai.AsyncOpenAI, body: dict) -> str:
        extra = {"ignore_eos": body.pop("ignore_eos")}
        stream = await client.chat.completions.create(**body, stream=True, extra_body=extra)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def together() -> list[str]:
        async with server.async_openai() as client:
            return await asyncio.gather(*[read(client, dict(body)) for body in bodies])

    assert asyncio.run(together()) == alone
