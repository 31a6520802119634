"""The example plugin in the tree is a real one: its metadata is found, its own tests pass, and it can be chosen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_files import EXAMPLE, install_example

from trivium.platform.probe import ask_in_child
from trivium.platform.select import select_platform


def test_its_own_tests_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example(tmp_path, monkeypatch)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(EXAMPLE), str(EXAMPLE)]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "8 passed" in result.stdout


def test_it_is_chosen_by_name_and_answers_from_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_example(tmp_path, monkeypatch)
    assert select_platform("example").platform.capabilities().name == "Example E1"
    assert ask_in_child("example", "probe").answer.inventory.value[0].total_bytes > 0
    assert [check.name for check in ask_in_child("example", "precheck").answer] == ["example-firmware"]
