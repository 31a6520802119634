"""Switches for clients that were written against another server of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import parrot_server
import pytest
from parrot_server import save_parrot, says
from server_process import ServerProcess
from wire import chunks

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def reworded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory: Path = save_parrot(tmp_path_factory.mktemp("models") / "parrot")
    options = ("--reasoning-field", "reasoning_content", "--named-call-finish", "tool_calls")
    process = ServerProcess(str(directory), *options, program=(parrot_server.__file__,))
    yield process
    assert process.stop() == 0


def test_c8_one_of_reasonings_two_names_can_be_dropped(reworded: ServerProcess) -> None:
    asked = {"messages": says("<think>I count.</think>Four.")}
    message = reworded.post(PATH, asked).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "I count." and "reasoning" not in message
    deltas = [choice["delta"] for chunk in chunks(reworded, PATH, asked) for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I count."
    assert not any("reasoning" in delta for delta in deltas)


def test_s10_a_named_call_may_finish_as_other_calls_do(reworded: ServerProcess) -> None:
    said = says('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    named = {"type": "function", "function": {"name": "now"}}
    (choice,) = reworded.post(PATH, {"messages": said, "tools": [TOOL], "tool_choice": named}).json()["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["tool_calls"]
