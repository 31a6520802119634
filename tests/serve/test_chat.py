"""POST /v1/chat/completions without streaming: the answer's shape, and what requests are accepted."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from server_process import ServerProcess
from tiny_model import CONTEXT, MODEL

USER = [{"role": "user", "content": "Hello"}]
ASK = {"model": MODEL, "messages": USER, "max_tokens": 8, "temperature": 0}


def ask(server: ServerProcess, **fields: object) -> dict:
    answer = server.post("/v1/chat/completions", {**ASK, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server: ServerProcess, **fields: object) -> dict:
    answer = server.post("/v1/chat/completions", {**ASK, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def prompt_of(server: ServerProcess, messages: list, **fields: object) -> str:
    """The text that the template makes of the messages."""
    tokens = server.post("/tokenize", {"messages": messages, **fields}).json()["tokens"]
    return server.post("/detokenize", {"tokens": tokens}).json()["text"]


def test_c1_c2_c3_the_answer_has_every_required_key(server: ServerProcess) -> None:
    answer = ask(server, n=2)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == MODEL
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice in answer["choices"]:
        assert {"index", "message", "finish_reason", "logprobs"} <= set(choice)
        assert choice["logprobs"] is None
        assert choice["message"]["role"] == "assistant"
        assert isinstance(choice["message"]["content"], str)
        assert choice["message"]["refusal"] is None
        assert "tool_calls" not in choice["message"]


def test_c5_finish_reasons_are_openais(server: ServerProcess) -> None:
    assert ask(server, ignore_eos=True)["choices"][0]["finish_reason"] == "length"
    everything = ask(server, allowed_token_ids=[2], max_tokens=50)
    assert everything["choices"][0]["finish_reason"] == "stop"
    assert everything["choices"][0]["message"]["content"] == ""


def test_c6_usage_adds_up_and_counts_the_prompt_once(server: ServerProcess) -> None:
    usage = ask(server, n=3, ignore_eos=True, max_tokens=5)["usage"]
    assert usage["completion_tokens"] == 15
    assert usage["total_tokens"] == usage["prompt_tokens"] + 15
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    again = ask(server, messages=[{"role": "user", "content": "the quick brown fox " * 20}])
    again = ask(server, messages=[{"role": "user", "content": "the quick brown fox " * 20}])
    assert 0 < again["usage"]["prompt_tokens_details"]["cached_tokens"] < again["usage"]["prompt_tokens"]


def test_c7_prompt_tokens_are_those_of_the_rendered_template(server: ServerProcess) -> None:
    count = server.post("/tokenize", {"messages": USER}).json()["count"]
    assert ask(server)["usage"]["prompt_tokens"] == count
    assert prompt_of(server, USER) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_c10_without_a_limit_the_answer_may_fill_the_context(server: ServerProcess) -> None:
    limits = {"max_tokens": None, "ignore_eos": True}
    words = [{"role": "user", "content": "a" * (CONTEXT - 60)}]  # a token each
    usage = ask(server, messages=words, **limits)["usage"]
    assert usage["total_tokens"] == CONTEXT
    assert ask(server, max_tokens=30, max_completion_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3


def test_c11_stop_strings_end_the_answer_and_are_not_in_it(server: ServerProcess) -> None:
    whole = ask(server, max_tokens=40, ignore_eos=True)["choices"][0]["message"]["content"]
    stop = whole[10:13]
    cut = ask(server, max_tokens=40, ignore_eos=True, stop=[stop, "never said by it"])["choices"][0]
    assert cut["message"]["content"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    kept = ask(server, max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=True)["choices"][0]
    assert kept["message"]["content"] == whole[: whole.index(stop)] + stop
    assert refusal(server, stop=["a", ""])["param"] == "stop"


def test_c12_content_may_be_parts_of_text(server: ServerProcess) -> None:
    parts = [{"type": "text", "text": "Hello"}]
    assert prompt_of(server, [{"role": "user", "content": parts}]) == prompt_of(server, USER)
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    assert refusal(server, messages=[{"role": "user", "content": image}])["param"] == "messages[0].content[0].type"
    assert refusal(server, messages=[{"role": "user", "content": None}])["param"] == "messages[0].content"
    assert refusal(server, messages=[])["param"] == "messages"


def test_c13_all_roles_are_taken_and_developer_is_system(server: ServerProcess) -> None:
    assert prompt_of(server, [{"role": "developer", "content": "x"}]) == prompt_of(
        server, [{"role": "system", "content": "x"}]
    )
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}],
        },
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "function", "content": "t", "name": "f"},
    ]
    assert ask(server, messages=history)["choices"]
    assert refusal(server, messages=[{"role": "king", "content": "x"}])["param"] == "messages[0].role"


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}])
def test_c14_the_template_sees_arguments_as_a_mapping(server: ServerProcess, arguments: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert "[weather(city=Oslo)]" in prompt_of(server, messages)


@pytest.mark.parametrize("arguments", ["[1]", "not json", "1", "[" * 20_000])
def test_c14_arguments_that_are_no_object_are_refused(server: ServerProcess, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    error = refusal(server, messages=[*USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert error["param"].startswith("messages")


def test_c15_c16_no_tools_is_no_tools_and_a_wrong_choice_is_refused(server: ServerProcess) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert ask(server, tools=[], tool_choice="auto")["choices"]
    for choice in (None, "none", "auto"):
        assert ask(server, tools=tools, tool_choice=choice)["choices"]
    assert refusal(server, tool_choice="required")["param"] == "tool_choice"
    for choice in ({"type": "function", "function": {"name": "g"}}, "sometimes", {"type": "custom"}, {}):
        assert refusal(server, tools=tools, tool_choice=choice)["param"] == "tool_choice"


def test_c20_top_logprobs_need_logprobs(server: ServerProcess) -> None:
    assert refusal(server, top_logprobs=3)["param"] == "top_logprobs"
    assert refusal(server, logprobs=True, top_logprobs=21)["param"] == "top_logprobs"
    assert refusal(server, logprobs="yes")["param"] == "logprobs"


def test_c21_logit_bias_bans_and_forces(server: ServerProcess) -> None:
    forced = ask(server, logit_bias={"70": 100}, logprobs=True, temperature=1)["choices"][0]
    (only,) = {tuple(entry["bytes"]) for entry in forced["logprobs"]["content"]}
    banned = ask(server, logit_bias={"70": -100}, logprobs=True, temperature=1)["choices"][0]
    assert only not in {tuple(entry["bytes"] or ()) for entry in banned["logprobs"]["content"]}
    assert refusal(server, logit_bias={"100000": 1})["param"] == "logit_bias"


def test_c22_stream_options_need_stream(server: ServerProcess) -> None:
    assert refusal(server, stream_options={"include_usage": True})["param"] == "stream_options"
    assert ask(server, stream_options=None)["choices"]


def test_c23_fields_of_openais_service_are_accepted(server: ServerProcess) -> None:
    ignored = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "verbosity": "low", "prediction": {"type": "content", "content": "x"},
        "web_search_options": {}, "modalities": ["text"], "seed": 4, "reasoning_effort": "low", "parallel_tool_calls": True,
    }  # fmt: skip
    assert ask(server, **ignored)["choices"]
    assert refusal(server, modalities=["text", "audio"])["param"] == "modalities"


def test_a_seed_makes_a_drawn_answer_repeatable(server: ServerProcess) -> None:
    def drawn(seed: int) -> str:
        return ask(server, seed=seed, temperature=1.5, max_tokens=20)["choices"][0]["message"]["content"]

    assert drawn(1) == drawn(1) != drawn(2)


def test_extensions_reach_the_engine(server: ServerProcess) -> None:
    greedy = ask(server, max_tokens=20, ignore_eos=True)["choices"][0]["message"]["content"]
    one = {"max_tokens": 20, "ignore_eos": True, "temperature": 1.7}
    for fields in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 0}, {"top_p": 1e-6}, {"typical_p": 1e-6}):
        answer = ask(server, **one, **fields)["choices"][0]["message"]["content"]
        assert (answer == greedy) or "typical_p" in fields, fields
    assert ask(server, min_tokens=7, allowed_token_ids=[2, 80], max_tokens=9)["usage"]["completion_tokens"] >= 7
    assert ask(server, stop_token_ids=[80], allowed_token_ids=[80])["choices"][0]["stop_reason"] == 80
    shown = ask(server, allowed_token_ids=[1], skip_special_tokens=False, max_tokens=2)
    assert shown["choices"][0]["message"]["content"] == "<|im_start|>" * 2
    assert len(ask(server, prompt_logprobs=1)["prompt_logprobs"]) == ask(server)["usage"]["prompt_tokens"]


def test_templates_take_arguments_and_may_leave_the_last_message_open(server: ServerProcess) -> None:
    assert prompt_of(server, USER, chat_template_kwargs={"suffix": "<think>"}).endswith("assistant\n<think>")
    assert prompt_of(server, USER, add_generation_prompt=False).endswith("Hello<|im_end|>\n")
    begun = [*USER, {"role": "assistant", "content": "I begin"}]
    assert prompt_of(server, begun, continue_final_message=True).endswith("<|im_start|>assistant\nI begin")
    for name in ("messages", "self", "tools"):
        assert refusal(server, chat_template_kwargs={name: 1})["param"] == f"chat_template_kwargs.{name}"


def test_tenants_with_different_salts_do_not_share_their_prefixes(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "a long secret that is worth keeping apart " * 10}]

    def cached(salt: str) -> int:
        return ask(server, messages=messages, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert (cached("a"), cached("b")) == (0, 0)
    assert cached("a") > 0


def test_the_openai_client_reads_the_answer(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=4)
    assert completion.choices[0].message.role == "assistant"
    assert completion.usage is not None and completion.usage.completion_tokens <= 4
    json.loads(completion.model_dump_json())


def test_many_clients_at_once_get_their_own_answers(server: ServerProcess) -> None:
    def prompts() -> list[list[dict]]:
        return [[{"role": "user", "content": f"number {number}"}] for number in range(16)]

    alone = [ask(server, messages=messages)["choices"][0]["message"]["content"] for messages in prompts()]

    async def together() -> list[str]:
        async with server.async_openai() as client:
            asks = [client.chat.completions.create(**{**ASK, "messages": messages}) for messages in prompts()]
            return [answer.choices[0].message.content or "" for answer in await asyncio.gather(*asks)]

    assert asyncio.run(together()) == alone
