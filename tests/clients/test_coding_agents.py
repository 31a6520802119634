"""Claude Code and Codex: told by the parrot to read a file, they do so and hand on what the model then says.

Each has a home of its own, so that nothing of its user's is read or sent.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from page_programs import run_page
from server_process import ServerProcess
from told import say

QUESTION = "What does note.txt say?"  # of the pages


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("HOME", "home"), ("CODEX_HOME", "home/.codex"), ("CLAUDE_CONFIG_DIR", "home/.claude")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.skipif(shutil.which("claude") is None, reason="there is no Claude Code")
def test_claude_code_reads_a_file_and_answers(parrot: ServerProcess, directory: Path) -> None:
    note = directory / "note.txt"
    note.write_text(say("Now I know.</think>It says hello."))
    asked = say(f"I look.</think>{call('Read', file_path=str(note))}").replace('"', '\\"')
    answer = json.loads(run_page("claude-code", parrot.url, "parrot", (QUESTION, asked), directory))
    assert (answer["result"], answer["num_turns"], answer["is_error"]) == ("It says hello.", 2, False)
    assert answer["usage"]["output_tokens"] > 0


@pytest.mark.skipif(shutil.which("codex") is None, reason="there is no Codex")
def test_codex_runs_a_command_and_answers(parrot: ServerProcess, directory: Path) -> None:
    (directory / "note.txt").write_text(say("It says hello."))
    asked = say(call("exec_command", cmd="cat note.txt")).replace('"', '\\"')
    events = run_page("codex", parrot.url, "parrot", (QUESTION, asked), directory)
    items = [event["item"] for event in map(json.loads, events.splitlines()) if event["type"] == "item.completed"]
    ran = [item for item in items if item["type"] == "command_execution"]
    assert [item["exit_code"] for item in ran] == [0]
    assert [item["text"] for item in items if item["type"] == "agent_message"] == ["It says hello."]
