"""Real answers of the default model, through the server and the command line. It is fetched once, about 93 MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest
from server_process import ServerProcess

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[ServerProcess]:
    process = ServerProcess("smollm2")
    yield process
    assert process.stop() == 0


def test_the_default_model_answers_a_question(smollm2: ServerProcess) -> None:
    with smollm2.openai() as client:
        answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_the_default_model_streams_what_it_answers(smollm2: ServerProcess) -> None:
    asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    with smollm2.openai() as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        with client.chat.completions.stream(**asked) as stream:
            pieces = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(pieces) == whole


def test_the_default_model_counts_its_template(smollm2: ServerProcess) -> None:
    """SmolLM2's template puts a system message of its own before a conversation without one."""
    tokens = smollm2.post("/tokenize", {"messages": QUESTION}).json()["tokens"]
    text = smollm2.post("/detokenize", {"tokens": tokens}).json()["text"]
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("one word.<|im_end|>\n<|im_start|>assistant\n")


def test_the_default_model_makes_a_call_that_it_must_make(smollm2: ServerProcess) -> None:
    """It is too small to call by itself; the grammar makes the form, and the model fills it."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "description": "The weather in a city", "parameters": parameters}
    with smollm2.openai() as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[{"type": "function", "function": function}],  # type: ignore[list-item]
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=60,
        )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_run_without_a_model_takes_the_default() -> None:
    command = [
        sys.executable,
        "-m",
        "trivium",
        "run",
        QUESTION[0]["content"],
        "--temperature",
        "0",
        "--max-tokens",
        "24",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout


def test_a_long_context_is_refused_with_the_models_own_number(smollm2: ServerProcess) -> None:
    length = smollm2.get("/v1/models").json()["data"][0]["max_model_len"]
    with smollm2.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "word " * 9000}])
    assert f"maximum context length is {length} tokens" in json.dumps(caught.value.body)
