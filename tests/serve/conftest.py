from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import parrot_server
import pytest
from parrot_server import save_parrot
from server_process import ServerProcess
from tiny_model import EXACT, LONG_CONTEXT, MODEL, save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for tests that need answers under way: one of ENDLESS tokens does not end while they are held up."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "endless", LONG_CONTEXT)


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[ServerProcess]:
    """Shared by all tests that leave it as they found it."""
    process = ServerProcess(str(tiny_model), "--served-model-name", MODEL, *EXACT)
    yield process
    log = process.log
    assert process.stop() == 0
    assert "Traceback" not in log, log


@pytest.fixture(scope="session")
def endless(endless_model: Path) -> Iterator[ServerProcess]:
    """Shared by tests that need answers under way and leave none."""
    process = ServerProcess(str(endless_model), "--served-model-name", MODEL, "--dtype", "float32")
    yield process
    assert process.stop() == 0


@pytest.fixture
def own_server(endless_model: Path) -> Iterator[ServerProcess]:
    """For tests that stop, kill or overload it."""
    process = ServerProcess(
        str(endless_model),
        *("--served-model-name", MODEL, "--dtype", "float32", "--max-num-seqs", "4", "--max-waiting", "2"),
    )
    yield process
    process.stop()


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose model says what it is told to say, with Hermes' calls and `<think>`."""
    directory = save_parrot(tmp_path_factory.mktemp("models") / "parrot")
    process = ServerProcess(str(directory), program=(parrot_server.__file__,))
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client
