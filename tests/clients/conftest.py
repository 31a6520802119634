"""Servers for clients of other people. The clients run here, in .venv-clients; the servers in .venv."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER_TESTS = ROOT / "tests" / "serve"
SERVER_PYTHON = str(ROOT / ".venv" / "bin" / "python")
sys.path.insert(0, str(SERVER_TESTS))
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
PROGRAMS = (Path(sys.executable).parent, ROOT / ".venv-clients" / "npm" / "node_modules" / ".bin")
os.environ["PATH"] = os.pathsep.join([*map(str, PROGRAMS), os.environ["PATH"]])

from server_process import ServerProcess  # noqa: E402


def made_by(script: str, directory: Path) -> str:
    """A model that a function of the server's tests makes."""
    subprocess.run([SERVER_PYTHON, "-c", script, str(directory)], cwd=SERVER_TESTS, check=True, capture_output=True)
    return str(directory)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    script = "import sys, pathlib, tiny_model; tiny_model.save_tiny_model(pathlib.Path(sys.argv[1]))"
    return made_by(script, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(tiny_model: str) -> Iterator[ServerProcess]:
    """A tiny model of random weights: it says anything, in any form that is asked for."""
    exact = ("--dtype", "float32", "--kv-cache-dtype", "float32")
    process = ServerProcess(tiny_model, "--served-model-name", "tiny", *exact, python=SERVER_PYTHON)
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It says what it is told to say, with Hermes' calls and `<think>`. Agents' prompts fit, though each byte is a token."""
    script = "import sys, pathlib, parrot_server; parrot_server.save_parrot(pathlib.Path(sys.argv[1]))"
    model = made_by(script, tmp_path_factory.mktemp("models") / "parrot")
    program = (str(SERVER_TESTS / "parrot_server.py"),)
    options = ("--served-model-name", "parrot", "--max-model-len", "200000")
    process = ServerProcess(model, *options, program=program, python=SERVER_PYTHON)
    yield process
    assert process.stop() == 0
