"""Reasoning apart from the answer, counted, and told under both names that clients look for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import parrot_server
import pytest
from parrot_server import save_parrot, says
from server_process import ServerProcess
from tiny_model import MODEL
from wire import chunks

from trivium.dialects.harmony import HarmonyDialect

PATH = "/v1/chat/completions"


def ask(server: ServerProcess, answer: str, **fields: object) -> dict[str, Any]:
    body = server.post(PATH, {"messages": says(answer), **fields})
    assert body.status_code == 200, body.text
    return body.json()


def message(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]["message"]


def test_c8_reasoning_is_told_under_both_names_and_is_not_content(parrot: ServerProcess) -> None:
    said = message(ask(parrot, "<think>\nI count.\n</think>\n\nFour."))
    assert said["content"] == "Four."
    assert said["reasoning"] == said["reasoning_content"] == "I count."
    plain = message(ask(parrot, "Four."))
    assert "reasoning" not in plain and "reasoning_content" not in plain


def test_c8_reasoning_streams_before_the_answer(parrot: ServerProcess) -> None:
    stream = chunks(parrot, PATH, {"messages": says("<think>\nI count.\n</think>\n\nFour.")})
    deltas = [choice["delta"] for chunk in stream for choice in chunk["choices"]]
    thoughts = [delta for delta in deltas if "reasoning" in delta]
    assert all(delta["reasoning"] == delta["reasoning_content"] for delta in thoughts)
    assert "".join(delta["reasoning"] for delta in thoughts) == "I count."
    assert thoughts
    assert deltas.index(thoughts[-1]) < next(place for place, delta in enumerate(deltas) if delta.get("content"))
    assert "".join(delta.get("content") or "" for delta in deltas) == "Four."


def test_c6_reasoning_tokens_are_those_between_the_marks(parrot: ServerProcess) -> None:
    """Every character of this tokenizer is a token."""
    fields = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    said = "<think>I count é.</think>Four."
    usage = ask(parrot, said)["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("I count é.".encode())
    stream = chunks(parrot, PATH, {"messages": says(said), **fields})
    assert stream[-1]["usage"]["completion_tokens_details"] == usage["completion_tokens_details"]
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in stream]
    assert counts == sorted(counts) and counts[0] == 0
    assert ask(parrot, "Four.")["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_prompt_that_ends_inside_of_reasoning_goes_on_with_it(parrot: ServerProcess) -> None:
    said = message(ask(parrot, "I count.\n</think>\n\nFour.", chat_template_kwargs={"enable_thinking": True}))
    assert (said["reasoning"], said["content"]) == ("I count.", "Four.")


def test_a_message_that_is_continued_inside_of_reasoning_goes_on_with_it(parrot: ServerProcess) -> None:
    begun = [*says("and count.\n</think>\n\nFour."), {"role": "assistant", "content": "<think>\nI count "}]
    said = message(ask(parrot, "", messages=begun, continue_final_message=True, add_generation_prompt=False))
    assert (said["reasoning"], said["content"]) == ("and count.", "Four.")


def test_reasoning_that_never_ends_is_no_content(parrot: ServerProcess) -> None:
    answer = ask(parrot, "<think>\nI count and count", max_tokens=20)
    assert message(answer)["content"] == ""
    assert message(answer)["reasoning"] == "I count and"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_c8_reasoning_in_the_history_is_accepted_under_every_name(parrot: ServerProcess) -> None:
    def rendered(**fields: object) -> str:
        turn = {"role": "assistant", "content": "Four.", **fields}
        answer = parrot.post(PATH + "/render", {"messages": [*says("x"), turn, *says("y")]})
        assert answer.status_code == 200, answer.text
        return answer.json()["prompt"]

    expected = rendered(reasoning="I count.")
    assert "<think>I count.</think>Four." in expected
    assert rendered(reasoning_content="I count.") == expected
    assert rendered(reasoning_details=[{"type": "reasoning.text", "text": "I count."}]) == expected


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = save_parrot(tmp_path_factory.mktemp("models") / "harmony", *HarmonyDialect.marks)
    process = ServerProcess(str(directory), "--tool-call-parser", "harmony", program=(parrot_server.__file__,))
    yield process
    assert process.stop() == 0


def test_marks_that_are_special_tokens_are_seen_and_not_shown(harmony: ServerProcess) -> None:
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi <|endoftext|>there."
    answer = message(ask(harmony, said))
    assert (answer["reasoning"], answer["content"]) == ("Hm.", "Hi there.")
    call = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
        '<|constrain|>json<|message|>{"a": 1}<|call|>'
    )
    tools = [{"type": "function", "function": {"name": "now"}}]
    (made,) = message(ask(harmony, call, tools=tools))["tool_calls"]
    assert made["function"] == {"name": "now", "arguments": '{"a": 1}'}


def test_reasoning_may_be_left_untold(parrot: ServerProcess) -> None:
    said = "<think>I count.</think>Four."
    for fields in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        answer = ask(parrot, said, **fields)
        assert message(answer)["content"] == "Four." and "reasoning" not in message(answer)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_an_effort_reaches_the_template_and_none_turns_thinking_off(parrot: ServerProcess) -> None:
    def prompt(**fields: object) -> str:
        return parrot.post(PATH + "/render", {"messages": says("x"), **fields}).json()["prompt"]

    for fields in ({"reasoning_effort": "low"}, {"reasoning": {"effort": "high"}}):
        assert prompt(**fields).endswith("<think>\n")
    for fields in ({}, {"reasoning_effort": "none"}, {"reasoning": {"enabled": False}}):
        assert prompt(**fields).endswith("assistant\n")
    assert prompt(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}).endswith("assistant\n")
    refused = parrot.post(PATH, {"messages": says("x"), "reasoning_effort": "heroic"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "reasoning_effort"


@pytest.fixture(scope="module")
def thinker(tiny_model: Path) -> Iterator[ServerProcess]:
    """A model of random weights, which goes on for ever with what the prompt began."""
    process = ServerProcess(str(tiny_model), "--served-model-name", MODEL, "--reasoning-parser", "think")
    yield process
    assert process.stop() == 0


THINK = {
    "messages": [{"role": "user", "content": "Hello"}],
    "chat_template_kwargs": {"suffix": "<think>\n"},
    "max_tokens": 60,
    "ignore_eos": True,
    "temperature": 1.0,
    "seed": 3,
}


@pytest.mark.parametrize(
    "budget", [{"thinking_budget": 7}, {"thinking_token_budget": 7}, {"reasoning": {"max_tokens": 7}}]
)
def test_a_budget_ends_reasoning_and_the_answer_follows(thinker: ServerProcess, budget: dict[str, Any]) -> None:
    answer = thinker.post(PATH, {**THINK, **budget}).json()
    free = thinker.post(PATH, THINK).json()
    assert free["usage"]["completion_tokens_details"]["reasoning_tokens"] == 60
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 7
    assert answer["usage"]["completion_tokens"] == 60
    said = message(answer)
    assert message(free)["reasoning"].startswith(said["reasoning"])
    assert said["content"] and "think>" not in said["content"]


def test_a_budget_of_nothing_and_an_effort_of_none_leave_no_reasoning(thinker: ServerProcess) -> None:
    for fields in ({"thinking_budget": 0}, {"reasoning_effort": "none"}):
        answer = thinker.post(PATH, {**THINK, **fields, "n": 2}).json()
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
        assert all("reasoning" not in choice["message"] for choice in answer["choices"])


def test_a_budget_holds_in_a_stream_read_by_the_openai_client(thinker: ServerProcess) -> None:
    with thinker.openai() as client:
        stream = client.chat.completions.create(
            model=MODEL, **THINK_FOR_CLIENT, stream=True, stream_options={"include_usage": True}
        )
        *_, last = list(stream)
    assert isinstance(last, openai.types.chat.ChatCompletionChunk)
    assert last.usage is not None and last.usage.completion_tokens_details is not None
    assert last.usage.completion_tokens_details.reasoning_tokens == 7


THINK_FOR_CLIENT: dict[str, Any] = {
    "messages": THINK["messages"],
    "max_tokens": 20,
    "seed": THINK["seed"],
    "extra_body": {"chat_template_kwargs": {"suffix": "<think>\n"}, "thinking_budget": 7, "ignore_eos": True},
}
