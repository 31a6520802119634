"""POST /v1/completions: prompts of every kind, echo, best_of, and the legacy answer."""

from __future__ import annotations

import openai
import pytest
from server_process import ServerProcess
from tiny_model import CONTEXT, MODEL
from wire import chunks

PATH = "/v1/completions"
ASK = {"model": MODEL, "prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def ask(server: ServerProcess, **fields: object) -> dict:
    answer = server.post(PATH, {**ASK, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server: ServerProcess, **fields: object) -> dict:
    answer = server.post(PATH, {**ASK, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def ids(server: ServerProcess, text: str) -> list[int]:
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def test_p1_prompts_of_every_kind_mean_the_same(server: ServerProcess) -> None:
    tokens = ids(server, "Hello")
    for prompt in ("Hello", ["Hello"], tokens, [tokens]):
        assert ask(server, prompt=prompt)["choices"] == ask(server)["choices"]


def test_p1_choices_are_numbered_by_prompt_and_usage_sums_up(server: ServerProcess) -> None:
    prompts = ["Hello", "the quick", "äöü"]
    alone = [ask(server, prompt=prompt)["choices"][0]["text"] for prompt in prompts]
    for prompt in (prompts, [ids(server, text) for text in prompts]):
        answer = ask(server, prompt=prompt, n=2)
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert [choice["text"] for choice in answer["choices"]] == [text for text in alone for _ in range(2)]
        assert answer["usage"]["prompt_tokens"] == sum(len(ids(server, text)) for text in prompts)
        assert answer["usage"]["completion_tokens"] == 6 * 8


def test_p1_a_null_or_empty_prompt_is_the_beginning_of_a_text(server: ServerProcess) -> None:
    for prompt in (None, ""):
        answer = ask(server, prompt=prompt, echo=True)
        assert answer["usage"]["prompt_tokens"] == 1
        assert answer["choices"][0]["text"] == ask(server, prompt=[0])["choices"][0]["text"]


@pytest.mark.parametrize(
    "prompt", [[], [[]], [["a"]], [-1], [[-1]], [10**6], [[1], "a"], [1, "a"], [1.5], {"a": 1}, 3, [None], ["a"] * 2000]
)
def test_p1_what_is_no_prompt_is_refused(server: ServerProcess, prompt: object) -> None:
    assert refusal(server, prompt=prompt)["param"].startswith("prompt")


def test_p2_p3_the_answer_has_its_keys_and_sixteen_tokens_by_default(server: ServerProcess) -> None:
    answer = ask(server, max_tokens=None)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["usage"]["completion_tokens"] == 16
    (choice,) = answer["choices"]
    assert {"text", "index", "logprobs", "finish_reason"} <= set(choice)
    assert (choice["logprobs"], choice["finish_reason"]) == (None, "length")


def test_p2_no_tokens_may_be_asked_for(server: ServerProcess) -> None:
    for stream in (False, True):
        body = {**ASK, "max_tokens": 0, "echo": True}
        if stream:
            choices = [choice for chunk in chunks(server, PATH, body) for choice in chunk["choices"]]
        else:
            answer = server.post(PATH, body).json()
            assert answer["usage"]["completion_tokens"] == 0
            choices = answer["choices"]
        assert "".join(choice["text"] for choice in choices) == "Hello"
        assert choices[-1]["finish_reason"] == "length"
    assert ask(server, max_tokens=0)["choices"][0]["text"] == ""


@pytest.mark.parametrize(
    "fields", [{}, {"echo": True}, {"echo": True, "logprobs": 2}, {"logprobs": 0}, {"stop": ["e", "t"]}]
)
def test_p4_a_stream_says_what_the_whole_answer_says(server: ServerProcess, fields: dict) -> None:
    body = {**ASK, "prompt": ["Hello", "the quick"], "n": 2, "max_tokens": 24, **fields}
    whole = server.post(PATH, body).json()
    *stream, last = chunks(server, PATH, {**body, "stream_options": {"include_usage": True}})
    assert last["choices"] == []
    for counted in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][counted] == whole["usage"][counted]
    for choice in whole["choices"]:
        pieces = [piece for chunk in stream for piece in chunk["choices"] if piece["index"] == choice["index"]]
        assert all(chunk["object"] == "text_completion" and chunk["usage"] is None for chunk in stream)
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"] is not None:
            told = [piece["logprobs"] for piece in pieces if piece["logprobs"] is not None]
            for key in ("tokens", "text_offset"):
                assert [value for lists in told for value in lists[key]] == choice["logprobs"][key]


def test_p5_a_suffix_is_refused_where_the_model_has_no_tokens_for_it(server: ServerProcess) -> None:
    assert refusal(server, suffix="end")["param"] == "suffix"
    assert ask(server, suffix="")["choices"]


def test_p5_a_suffix_stands_after_what_the_model_writes(parrot: ServerProcess) -> None:
    body = {"prompt": "def f(", "suffix": "<|say|>x):<|said|>", "max_tokens": 20}
    (choice,) = parrot.post("/v1/completions", body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("x):", "stop")
    (rendered,) = parrot.post("/v1/completions/render", body).json()
    written = parrot.post("/detokenize", {"tokens": rendered["token_ids"]}).json()["text"]
    assert written == "<|fim_prefix|>def f(<|fim_suffix|><|say|>x):<|said|><|fim_middle|>"
    for wrong in ({"echo": True}, {"prompt": [1, 2]}):
        answer = parrot.post("/v1/completions", {**body, **wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")


def test_p5_best_of_gives_the_likeliest(server: ServerProcess) -> None:
    assert refusal(server, best_of=1, n=2)["param"] == "best_of"
    assert refusal(server, best_of=3, stream=True)["param"] == "best_of"
    drawn = {"temperature": 1.5, "seed": 11, "logprobs": 0, "max_tokens": 6}
    candidates = ask(server, n=4, **drawn)["choices"]
    best = ask(server, n=2, best_of=4, **drawn)
    ranked = sorted(candidates, key=lambda choice: sum(choice["logprobs"]["token_logprobs"]), reverse=True)
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 4 * 6
    without = ask(server, n=1, best_of=4, **{**drawn, "logprobs": None})
    assert without["choices"][0]["text"] == ranked[0]["text"]
    assert without["choices"][0]["logprobs"] is None


def test_p6_special_tokens_in_a_prompt_are_tokens(server: ServerProcess) -> None:
    assert ids(server, "<|im_start|>")[-1] == 1
    count = ask(server, prompt="<|im_start|>user", add_special_tokens=False)["usage"]["prompt_tokens"]
    assert count == len(
        server.post("/tokenize", {"prompt": "<|im_start|>user", "add_special_tokens": False}).json()["tokens"]
    )


def test_a_request_may_not_ask_for_answers_without_number(server: ServerProcess) -> None:
    assert refusal(server, prompt=["a"] * 100, n=100)["param"] == "n"


def test_the_longest_prompt_that_fits_is_answered(server: ServerProcess) -> None:
    assert ask(server, prompt=[5] * (CONTEXT - 2), max_tokens=2)["usage"]["total_tokens"] == CONTEXT
    assert refusal(server, prompt=[5] * (CONTEXT - 2), max_tokens=3)["code"] == "context_length_exceeded"


def test_the_openai_client_streams_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="Hello", temperature=0).choices[0].text
    stream = client.completions.create(model=MODEL, prompt="Hello", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole
